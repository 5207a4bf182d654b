"""Names of other toolkits for the fields of a spec: Hugging Face, nanoGPT, fairseq, torch, x-transformers, JAX libraries."""

from __future__ import annotations

from ..slots.aliases import spelling

_OURS = {
    "activation": "hidden_act act_fn activation_function nonlinearity feed_forward_proj hidden_activation",
    "base": "rope_theta rotary_base rope_base theta",
    "buckets": "relative_attention_num_buckets num_buckets",
    "causal": "is_decoder is_causal autoregressive",
    "class_token": "cls_token use_cls_token",
    "classes": "num_labels num_classes n_classes",
    "combine": "position_combine",
    "d_ff": "intermediate_size dim_feedforward ffn_dim encoder_ffn_dim decoder_ffn_dim n_inner ffn_hidden_size "
    "feed_forward_dim hidden_dim mlp_dim ff_dim d_hidden d_inner ff_size",
    "d_model": "hidden_size n_embd embed_dim embedding_dim embedding_size model_dim dim d_embed emb_dim n_embed",
    "dims": "rotary_dim rotary_dims rotary_ndims",
    "dropout": "hidden_dropout_prob resid_pdrop embd_pdrop p_dropout residual_dropout dropout_rate attn_pdrop attn_dropout "
    "attention_dropout attention_probs_dropout_prob activation_dropout resid_dropout hidden_dropout",
    "embedding_norm": "layernorm_embedding normalize_embedding",
    "end_id": "eos_token_id eos_id eos_idx eos",
    "eps": "layer_norm_eps layer_norm_epsilon rms_norm_eps norm_eps epsilon layernorm_epsilon",
    "head_dim": "head_size d_kv d_head kv_channels dim_head d_k",
    "init": "initializer initializer_range init_std initializer_factor",
    "kind": "type name_or_type class _target_ model_type",
    "max_distance": "relative_attention_max_distance",
    "max_len": "max_position_embeddings n_positions block_size max_seq_len n_ctx max_length seq_len max_target_positions "
    "max_source_positions context_length max_seq_length",
    "num_heads": "nhead n_head n_heads heads num_attention_heads attention_heads encoder_attention_heads "
    "decoder_attention_heads num_head",
    "num_kv_heads": "num_key_value_heads n_kv_heads kv_heads num_query_groups n_head_kv n_kv_head",
    "num_layers": "num_hidden_layers n_layer n_layers depth encoder_layers decoder_layers num_encoder_layers "
    "num_decoder_layers num_blocks num_layer",
    "output_gate": "attn_output_gate attention_output_gate gated_attention use_output_gate",
    "pad_id": "pad_token_id padding_idx pad_idx pad",
    "placement": "norm_first pre_norm prenorm normalize_before norm_position",
    "position": "position_embedding_type positional_encoding pos_emb position_encoding pos_encoding",
    "query_key_norm": "qk_norm qk_layernorm use_qk_norm",
    "repeat": "times count",
    "scale": "scale_embedding embed_scale scale_embeddings",
    "segments": "type_vocab_size num_segments",
    "share": "tie_word_embeddings tie_weights tied share_embeddings",
    "shared_projection": "shared_kv share_kv shared_qk tie_kv",
    "sink": "attention_sink attention_sinks sinks use_sinks s_aux",
    "softcap": "attn_logit_softcapping final_logit_softcapping logit_softcap",
    "start_id": "bos_token_id decoder_start_token_id bos_id bos_idx sos_id bos",
    "take": "pooling pooling_mode",
    "value_residual": "value_residuals add_value_residual resformer",
    "vocab_size": "n_vocab num_embeddings vocab n_tokens num_tokens",
    "window": "sliding_window window_size attention_window local_window",
}

PEERS = {spelling(theirs): ours for ours, names in _OURS.items() for theirs in names.split()}
"""The spelling of a name in another toolkit -> the field of a spec."""
