"""Suggestions for unknown names: the name that was probably meant, and its place in a spec."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection

from ..slots.aliases import spelling
from .grammar import Grammar
from .located import Diagnostics, Located, short

CLOSE = 0.65
_GLUED = re.compile(r"[A-Za-z_][\w.-]*:[^\s:/\\]")


def nearest(name: str, known: Collection[str], cutoff: float = 0.6) -> str | None:
    """The known name with the same letters (`numHeads`), or the most similar one."""
    same = [candidate for candidate in sorted(known) if spelling(candidate) == spelling(name)] if len(name) <= 60 else []
    if same:
        return same[0]
    near = difflib.get_close_matches(name, sorted(known), 1, cutoff) if len(name) <= 60 else []
    return near[0] if near else None


def glued(text: str) -> str:
    """The fix for a key and a value without a space between them (`dropout:0.1`), which YAML reads as one name."""
    return "write a space after the colon" if _GLUED.match(text) else ""


def did_you_mean(name: str, known: Collection[str], several: str = "known") -> str:
    """The nearest name as a question, or the known names if they are few."""
    near = nearest(name, known)
    if near:
        return f"did you mean `{near}`?"
    return f"{several}: {', '.join(sorted(known))}" if 0 < len(known) <= 30 else ""


def unknown_key(
    name: str,
    value: Located,
    path: str,
    allowed: Collection[str],
    grammar: Grammar,
    diagnostics: Diagnostics,
    near_keys: bool = False,
) -> None:
    """Adds the error about an unknown key: a name of another toolkit, a key in the wrong place, a misspelt or an unknown one.

    `path` is that of the mapping. With `near_keys` the mapping holds options of a sub-layer, and suggestions start with their
    keys.
    """
    ours, near = PEERS.get(spelling(name[:60])), nearest(name, allowed, CLOSE)
    code, message = "TFK010", f"unknown key `{short(name)}`"
    if ours in allowed:
        fix, meant = f"the name here is `{ours}`", ours
    elif name in grammar.places:
        code, message = "TFK018", f"`{short(name)}` does not belong here"
        twin = nearest(name, allowed, 0.85)
        fix, meant = (
            f"it belongs under {_belongs(name, grammar, near_keys)}" + (f", or did you mean `{twin}`?" if twin else ""),
            name,
        )
    elif near:
        fix, meant = f"did you mean `{near}`?", near
    elif ours in grammar.places:
        fix, meant = f"the name here is `{ours}`, under {_belongs(str(ours), grammar, near_keys)}", ours
    else:
        meant = nearest(name, grammar.places, 0.85)
        known = f"known here: {', '.join(sorted(allowed))}" if 0 < len(allowed) <= 30 else ""
        fix = f"did you mean `{meant}`, under {_belongs(meant, grammar, near_keys)}?" if meant else known
    if meant:
        diagnostics.meant.add(meant)
    diagnostics.add(code, value.key or value.location, path, message, fix)


def _belongs(name: str, grammar: Grammar, near_keys: bool) -> str:
    keys = {f"`{key}`" for key in grammar.option_keys}
    places = [place for place in grammar.places[name] if place in keys] if near_keys else []
    places = places or list(grammar.places[name])
    return " or ".join(places[:3]) + (" or others" if len(places) > 3 else "")


def unknown_name(slot: str, name: str, grammar: Grammar) -> tuple[str, str]:
    """Message and fix for an unknown name in a slot."""
    fix = glued(name) or (grammar.catalogue.why_missing(slot, name) if len(name) <= 60 else "")
    return f"unknown {SLOT_WORDS.get(slot, slot)} `{short(name)}`", fix


def which_kind(slot: str, grammar: Grammar) -> str:
    """The fix for a part without `kind`."""
    return f"write which {SLOT_WORDS.get(slot, slot)}: {', '.join(grammar.names(slot))}"


SLOT_WORDS = {
    "node": "node kind",
    "cell": "recurrent cell",
    "sublayer": "sub-layer kind",
    "score": "score function",
    "backend": "attention backend",
}


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
