"""Small models of transformers with random weights, one per architecture that has a weight map.

Sizes differ pairwise, heads share keys where they can, and no parameter keeps a value that hides a mistake (0 or 1).
"""

from __future__ import annotations

from typing import Any

VOCABULARY = 61
IDS = {"pad_token_id": 58, "bos_token_id": 59, "eos_token_id": 60}
ENCODER = {
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 40,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 37,
}
DECODER = {**ENCODER, "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 8}
SEQ2SEQ = {
    "d_model": 24,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "encoder_ffn_dim": 40,
    "decoder_ffn_dim": 44,
    "encoder_attention_heads": 3,
    "decoder_attention_heads": 6,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 37,
    "forced_eos_token_id": None,
}
T5 = {"d_model": 20, "d_kv": 6, "d_ff": 28, "num_heads": 3, "num_layers": 2, "num_decoder_layers": 3, "vocab_size": VOCABULARY}
GPT = {"n_embd": 24, "n_inner": 40, "n_layer": 2, "n_head": 3, "n_positions": 37, "vocab_size": VOCABULARY, **IDS}
IMAGE = {"image_size": 28, "patch_size": 7, "num_channels": 2}
VISION = {key: value for key, value in ENCODER.items() if key not in ("vocab_size", "max_position_embeddings")}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 500,
}

MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "BertModel": ("Bert", ENCODER),
    "BertForPreTraining": ("Bert", ENCODER),
    "BertForMaskedLM": ("Bert", {**ENCODER, "hidden_act": "gelu_new"}),
    "BertForSequenceClassification": ("Bert", {**ENCODER, "num_labels": 5}),
    "BertForTokenClassification": ("Bert", {**ENCODER, "num_labels": 4}),
    "BertForQuestionAnswering": ("Bert", ENCODER),
    "RobertaModel": ("Roberta", ENCODER),
    "RobertaForMaskedLM": ("Roberta", ENCODER),
    "RobertaForSequenceClassification": ("Roberta", {**ENCODER, "num_labels": 3}),
    "AlbertModel": ("Albert", {**ENCODER, "embedding_size": 16}),
    "AlbertForMaskedLM": ("Albert", {**ENCODER, "embedding_size": 16}),
    "DistilBertModel": ("DistilBert", {"dim": 24, "n_layers": 2, "n_heads": 3, "hidden_dim": 40, "vocab_size": VOCABULARY}),
    "DistilBertForMaskedLM": (
        "DistilBert",
        {"dim": 24, "n_layers": 2, "n_heads": 3, "hidden_dim": 40, "vocab_size": VOCABULARY},
    ),
    "DistilBertForSequenceClassification": (
        "DistilBert",
        {"dim": 24, "n_layers": 2, "n_heads": 3, "hidden_dim": 40, "vocab_size": VOCABULARY, "num_labels": 3},
    ),
    "ElectraModel": ("Electra", {**ENCODER, "embedding_size": 24}),
    "ElectraForMaskedLM": ("Electra", {**ENCODER, "embedding_size": 16}),
    "ElectraForPreTraining": ("Electra", {**ENCODER, "embedding_size": 24}),
    "ModernBertForMaskedLM": (
        "ModernBert",
        {**ENCODER, "num_hidden_layers": 7, "local_attention": 6, **IDS, "cls_token_id": 59, "sep_token_id": 60},
    ),
    "ModernBertModel": (
        "ModernBert",
        {**ENCODER, "num_hidden_layers": 4, "local_attention": 6, **IDS, "cls_token_id": 59, "sep_token_id": 60},
    ),
    "XLMRobertaForMaskedLM": ("XLMRoberta", ENCODER),
    "XLMRobertaForSequenceClassification": ("XLMRoberta", {**ENCODER, "num_labels": 3}),
    "CamembertForMaskedLM": ("Camembert", ENCODER),
    "GPT2LMHeadModel": ("GPT2", GPT),
    "GPTJForCausalLM": ("GPTJ", {**GPT, "rotary_dim": 4}),
    "GPTNeoXForCausalLM": (
        "GPTNeoX",
        {**ENCODER, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}, **IDS},
    ),
    "LlamaForCausalLM": ("Llama", {**DECODER, **IDS, "rope_parameters": LLAMA3, "max_position_embeddings": 4000}),
    "MistralForCausalLM": ("Mistral", {**DECODER, **IDS, "sliding_window": 7, "tie_word_embeddings": True}),
    "Qwen3ForCausalLM": ("Qwen3", {**DECODER, **IDS, "attention_bias": True}),
    "Olmo2ForCausalLM": ("Olmo2", {**ENCODER, **IDS, "num_key_value_heads": 1}),
    "Gemma2ForCausalLM": (
        "Gemma2",
        {**DECODER, **IDS, "num_hidden_layers": 3, "sliding_window": 7, "query_pre_attn_scalar": 11},
    ),
    "T5ForConditionalGeneration": ("T5", {**T5, "decoder_start_token_id": 0}),
    "MT5ForConditionalGeneration": ("MT5", {**T5, "decoder_start_token_id": 0, "feed_forward_proj": "gelu"}),
    "mT5 with a head": ("MT5", {**T5, "decoder_start_token_id": 0, "feed_forward_proj": "gated-gelu"}),
    "T5 1.1": ("T5", {**T5, "decoder_start_token_id": 0, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}),
    "BartForConditionalGeneration": ("Bart", SEQ2SEQ),
    "MBartForConditionalGeneration": ("MBart", {**SEQ2SEQ, "scale_embedding": True}),
    "MarianMTModel": (
        "Marian",
        {**SEQ2SEQ, "activation_function": "swish", "scale_embedding": True, "pad_token_id": 60, "decoder_start_token_id": 60},
    ),
    "PegasusForConditionalGeneration": ("Pegasus", {**SEQ2SEQ, "scale_embedding": True}),
    "M2M100ForConditionalGeneration": ("M2M100", {**SEQ2SEQ, "encoder_layerdrop": 0.0, "decoder_layerdrop": 0.0}),
    "ViTForImageClassification": ("ViT", {**VISION, **IMAGE, "num_labels": 3}),
    "DeiTModel": ("DeiT", {**VISION, **IMAGE, "pooler_output_size": 18}),
    "DeiTForImageClassification": ("DeiT", {**VISION, **IMAGE, "num_labels": 3}),
    "CLIPModel": (
        "CLIP",
        {
            "text_config": {**ENCODER, "eos_token_id": 60, "pad_token_id": 0, "bos_token_id": 1},
            "vision_config": {**VISION, **IMAGE, "hidden_size": 20, "num_attention_heads": 2},
            "projection_dim": 18,
        },
    ),
    "WhisperForConditionalGeneration": (
        "Whisper",
        {
            **{key: value for key, value in SEQ2SEQ.items() if key != "max_position_embeddings"},
            "num_mel_bins": 10,
            "max_source_positions": 15,
            "max_target_positions": 37,
            "decoder_start_token_id": 57,
            "pad_token_id": 58,
            "bos_token_id": 58,
            "eos_token_id": 58,
            "suppress_tokens": None,
            "begin_suppress_tokens": None,
        },
    ),
}
"""By class (or a name of its own): the name of its family, and the options of its configuration."""


def make(name: str) -> Any:
    """A model in evaluation mode, in the current default dtype."""
    import torch
    import transformers

    family, options = MODELS[name]
    config = getattr(transformers, f"{family}Config")(**options, attn_implementation="eager")
    architecture = {"T5 1.1": "T5ForConditionalGeneration", "mT5 with a head": "MT5ForConditionalGeneration"}.get(name, name)
    torch.manual_seed(len(name))
    model = getattr(transformers, architecture)(config).eval()
    if name != architecture:  # transformers ties the head until a checkpoint with both is loaded
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
    fixed = {"model.encoder.embed_positions.weight"} if family in ("Whisper", "Marian", "Pegasus") else set()
    fixed |= {"model.decoder.embed_positions.weight"} if family in ("Marian", "Pegasus") else set()
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if key not in fixed:
                parameter.normal_(1.0 if parameter.dim() < 2 and key.endswith("norm.weight") else 0.0, 0.3)
        for key, buffer in model.named_buffers():
            if key == "final_logits_bias":
                buffer.normal_()
    return model
