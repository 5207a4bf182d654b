"""Names of parts in torch, Hugging Face, fairseq, x-transformers and the papers, for suggestions.

An unknown name is compared with the known ones in this order: another spelling (`RMSNorm`, `rms-norm`), the name of the same
mathematics in another toolkit, a typing error. The table also lists parts that tfkit lacks, so that `elu` is not taken for a
typing error of `relu`.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Mapping

# By slot, the name in tfkit -> names in other toolkits. A name of another toolkit may mean several parts of tfkit. Case, `_`,
# `-`, `.` and a leading module are ignored.
_OURS: dict[str, dict[str, str]] = {
    "placement": {
        "pre": "pre_norm pre_ln pre_layer_norm norm_first norm_before normalize_before before",
        "post": "post_norm post_ln post_layer_norm norm_last norm_after normalize_after after add_norm add_and_norm",
        "parallel": "parallel_residual use_parallel_residual parallel_block parallel_attention gptj palm",
        "sandwich": "sandwich_norm sandwich_ln peri_norm peri_ln double_norm gemma2",
        "residual_post": "res_post res_post_norm post_norm_residual reordered_norm output_norm olmo2 swin_v2",
        "deepnorm": "deepnet",
        "none": "no_norm without_norm nonorm identity",
    },
    "norm": {
        "layer_norm": "ln layernormalization fused_layer_norm apex_layer_norm",
        "rms_norm": "rms t5_layer_norm llama_rms_norm gemma_rms_norm fused_rms_norm root_mean_square_norm",
        "batch_norm": "bn batchnormalization batch_norm_1d",
        "none": "identity no_norm off",
    },
    "position": {
        "rotary_half": "rope rotary rotary_embedding rotary_emb rotary_position_embedding rotary_positional_embedding roformer "
        "rotate_half rope_half rope_neox neox gpt_neox llama_rotary_embedding",
        "rotary_interleaved": "rope rotary rotary_embedding rotary_emb rotary_position_embedding rotary_positional_embedding "
        "roformer rotate_every_two rope_interleaved rope_gptj gptj",
        "sinusoidal": "sin sine sincos sin_cos sinusoid sinusoids sinusoidal_embedding sinusoidal_positional_embedding "
        "sinusoidal_position_embedding sinusoidal_encoding positional_encoding fixed vaswani",
        "sinusoidal_halves": "sinusoidal_positional_embedding sinusoidal_position_embedding "
        "marian_sinusoidal_positional_embedding tensor2tensor",
        "learned": "absolute absolute_positional_embedding learned_positional_embedding learned_position_embedding learnt "
        "learned_absolute learnable trainable trained embedding bert_embeddings",
        "relative_t5": "t5 t5_relative t5_bias t5_relative_position_bias rel_pos_bias relative_position_bias relative_bias "
        "relative_attention_bias bucketed relative",
        "relative_shaw": "shaw relative_key relative relative_position relative_positions rel_pos",
        "alibi": "alibi_positional_bias linear_bias linear_biases attention_with_linear_biases",
        "none": "nope no_position off no_positional_encoding",
    },
    "activation": {
        "gelu": "gelu_python gelu_erf gelu_exact gelu_activation",
        "gelu_tanh": "gelu_new new_gelu new_gelu_activation gelu_pytorch_tanh gelu_fast gelu_approx gelu_approximate "
        "approximate_gelu gelu_accurate pytorch_gelu_tanh",
        "quick_gelu": "quick_gelu_activation gelu_quick",
        "silu": "swish silu_activation",
        "swiglu": "gated_silu silu_and_mul gated_swish swish_glu silu_glu",
        "geglu": "gated_gelu_exact gelu_glu gelu_and_mul",
        "geglu_tanh": "gated_gelu gated_gelu_new gelu_tanh_and_mul gelu_tanh_glu",
        "reglu": "gated_relu relu_glu relu_and_mul",
        "glu": "gated_linear_unit gated_sigmoid sigmoid_glu",
        "relu_squared": "relu2 squared_relu relu_sq sq_relu",
        "identity": "linear none no_activation linear_activation id",
        "tanh": "hyperbolic_tangent tanh_activation",
    },
    "backend": {
        "eager": "math naive manual vanilla reference plain python pytorch_math",
        "sdpa": "scaled_dot_product_attention sdp torch pytorch native torch_sdpa multihead_attention flash_sdp",
        "flash_attn.v2": "flash flash_attention flash_attn flash_attention_2 flash_attn_2 flash2 fa2 flash_v2 flash_attn_func",
        "flash_attn.v3": "flash_attention_3 flash_attn_3 flash3 fa3 flash_v3",
        "flash_attn.v4": "flash_attention_4 flash_attn_4 flash4 fa4 flash_v4",
        "flex": "flex_attention flexattention torch_flex",
        "cudnn": "cudnn_attention cudnn_sdpa cudnn_mha",
    },
    "score": {
        "dot": "dot_product scaled_dot_product scaled_dot mul softmax_dot",
        "additive": "bahdanau mlp add additive_attention",
        "general": "luong luong_general bilinear multiplicative",
        "concat": "luong_concat concatenation",
    },
    "cell": {
        "rnn_tanh": "rnn elman vanilla vanilla_rnn simple_rnn simple rnn_cell elman_rnn",
        "rnn_relu": "relu_rnn irnn",
        "gru_cho": "cho cho_gru cho2014 gru_2014",
        "gru": "gru_cell gated_recurrent_unit",
        "lstm": "lstm_cell long_short_term_memory",
    },
    "sublayer": {
        "self_attention": "attention attn self_attn mha multihead_attention multi_head_attention masked_attention "
        "causal_attention causal_self_attention masked_self_attention mixer sa",
        "cross_attention": "cross_attn encoder_attn encoder_attention encdec_attention enc_dec_attention "
        "encoder_decoder_attention source_attention src_attn inter_attention context_attention",
        "ffn": "mlp feed_forward position_wise_feed_forward positionwise_ffn pointwise_ffn ff fc mlp_block "
        "dense_relu_dense feed_forward_network",
    },
    "node": {
        "tokens": "token embedding embeddings token_embedding token_embeddings word_embedding word_embeddings embed "
        "input_embedding wte ids",
        "stack": "encoder decoder transformer transformer_encoder transformer_decoder encoder_layers decoder_layers layers "
        "blocks transformer_stack bert_encoder encoder_stack decoder_stack",
        "token_logits": "lm_head language_modeling_head output_projection generator unembedding unembed logits "
        "to_logits mlm_head",
        "rnn": "recurrent lstm gru birnn bilstm bigru rnn_encoder rnn_decoder seq2seq",
        "dense": "linear projection proj pooler fc mlp_head",
        "classify": "classifier classification classification_head cls_head sequence_classification",
        "span_logits": "qa qa_outputs question_answering qa_head span_head span start_end_logits",
        "pool": "pooling mean_pooling global_pooling global_average_pooling max_pooling mean_pool cls_pooling",
        "patches": "patch_embed patch_embedding patch_embeddings vit_embeddings image images vision pixels",
        "features": "input_features audio log_mel mel spectrogram frames",
        "convolutions": "conv conv1d convolution convolution_1d conv_stem subsampling",
        "similarity": "cosine_similarity contrastive clip_logits logit_scale cosine",
        "layer_mix": "scalar_mix elmo weighted_layers layer_average mix weighted_sum_of_layers",
    },
    "init": {
        "orthogonal": "orthogonal_init saxe recurrent",
        "rnnsearch": "bahdanau groundhog",
        "uniform": "uniform_init luong",
        "xavier": "xavier_uniform glorot glorot_uniform xavier_init glorot_init transformer vaswani",
        "normal": "gaussian randn normal_init",
        "bert": "truncated_normal trunc_normal bert_init roberta",
        "gpt2": "gpt gpt2_init nanogpt scaled_residual",
        "t5": "t5_init mesh_tensorflow",
        "torch": "pytorch torch_init pytorch_default default reset_parameters",
    },
    "optimiser": {
        "adam": "fused_adam adam_torch vaswani",
        "adamw": "adamw_torch adamw_torch_fused adamw_hf fused_adamw adam_with_weight_decay",
        "sgd": "gradient_descent stochastic_gradient_descent vanilla_sgd",
    },
    "schedule": {
        "noam": "noam_lr noam_opt noam_decay transformer vaswani attention_is_all_you_need",
        "inverse_sqrt": "inverse_square_root inv_sqrt invsqrt rsqrt inverse_sqrt_lr",
        "cosine": "cosine_annealing cosine_annealing_lr cosine_decay cosine_with_warmup cosine_schedule_with_warmup "
        "get_cosine_schedule_with_warmup warmup_cosine cosine_lr",
        "halving": "halve step_halving luong",
        "plateau": "reduce_lr_on_plateau reduce_on_plateau",
        "constant": "constant_with_warmup constant_lr fixed constant_schedule_with_warmup warmup_constant",
    },
    "tokeniser": {
        "bpe": "byte_pair byte_pair_encoding subword_nmt sentencepiece_bpe spm_bpe",
        "unigram": "sentencepiece_unigram spm spm_unigram ulm unigram_lm sentencepiece",
        "characters": "char character chars char_level character_level",
    },
    "data": {
        "parallel": "translation seq2seq bitext mt machine_translation parallel_text sequence_to_sequence",
        "texts": "lines sentences documents",
        "language": "lm clm language_modeling causal_lm language_model text causal next_token",
        "masked": "mlm masked_lm masked_language_modeling bert denoising_mask",
        "classification": "cls classify sequence_classification text_classification labels table csv tsv",
        "spans": "squad qa question_answering extractive_qa questions span",
        "images": "image vision image_classification image_folder imagefolder mnist idx",
    },
}

_LACKING: dict[str, str] = {
    "norm": "group_norm instance_norm scale_norm power_norm crms_norm l2_norm dynamic_tanh dyt weight_norm "
    "spectral_norm deep_norm",
    "placement": "rezero layer_scale fixup mix_ln admin resi_dual",
    "position": "xpos kerple sandwich fire disentangled transformer_xl relative_key_query conv rope_2d mrope yarn cope",
    "activation": "elu selu celu prelu rrelu relu6 leaky_relu mish hardtanh hardswish hardsigmoid sigmoid "
    "softplus softmax softsign softshrink tanhshrink log_sigmoid laplace bilinear seglu gelu_10 xielu star_relu",
    "score": "cosine location distance",
    "backend": "xformers ring triton sage mem_efficient efficient linear performer linformer longformer big_bird",
    "sublayer": "convolution conv moe mamba ssm memory adapter lora gate fourier retention",
    "cell": "sru qrnn mlstm slstm min_gru indrnn quasi",
    "node": "crf",
    "init": "kaiming he kaiming_uniform kaiming_normal xavier_normal glorot_normal zeros ones mup",
    "optimiser": "nadam radam adamax adagrad adafactor lamb lion muon shampoo rmsprop rprop lbfgs sparse_adam "
    "adan sophia adabelief adam8bit",
    "schedule": "polynomial exponential step one_cycle wsd warmup_stable_decay cosine_with_restarts",
    "tokeniser": "wordpiece word words whitespace bytes byte byte_level tiktoken",
    "data": "audio speech regression span_corruption",
}
"""Parts that tfkit does not have. Some of their names are similar to known ones."""

SLIP = 0.7
"""The lowest similarity, by difflib, at which a name counts as a typing error of another."""
# `torch.nn.GELU`, `nn.LayerNorm`, `F.relu`, `torch.optim.AdamW`: the module is ignored.
_MODULE = re.compile(
    r"^(?:(?:torch|nn|functional|optim|f|tf|keras|layers|jax|flax|transformers|fairseq|x_transformers)\.)+", re.I
)


def spelling(name: str) -> str:
    """A name without case, underscores, hyphens, blanks and leading module, which toolkits spell differently."""
    return re.sub(r"[^0-9a-z]", "", _MODULE.sub("", name).casefold())


def _by_spelling() -> dict[str, dict[str, tuple[str, ...]]]:
    names_by_slot: dict[str, dict[str, tuple[str, ...]]] = {}
    for slot, table in _OURS.items():
        names = names_by_slot.setdefault(slot, {})
        for ours, theirs in table.items():
            for name in theirs.split():
                names[spelling(name)] = tuple(sorted({*names.get(spelling(name), ()), ours}))
    return names_by_slot


ALIASES: Mapping[str, Mapping[str, tuple[str, ...]]] = _by_spelling()
"""By slot: the spelling of a foreign name -> our names."""
LACKING: Mapping[str, frozenset[str]] = {slot: frozenset(map(spelling, names.split())) for slot, names in _LACKING.items()}
"""By slot: the spellings of parts that tfkit does not have."""


def meant(slot: str, name: str, known: Collection[str]) -> tuple[str, ...]:
    """The known names that `name` probably means; usually one or none."""
    if len(name) > 60:
        return ()
    spelled = spelling(name)
    same = tuple(sorted(candidate for candidate in known if spelling(candidate) == spelled))
    if same:
        return same
    aliases = ALIASES.get(slot, {})
    if spelled in aliases:
        return tuple(ours for ours in aliases[spelled] if ours in known)
    if spelled in LACKING.get(slot, ()):
        return ()
    near = difflib.get_close_matches(name.casefold(), sorted(known), 1, SLIP)
    return tuple(near)


def did_you_mean(names: Collection[str]) -> str:
    """The names as a question."""
    return f"did you mean {' or '.join(f'`{name}`' for name in names)}?"
