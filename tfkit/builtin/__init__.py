"""The built-in plugin: registered by entry point, like a third party's. Importing it imports no torch."""

from __future__ import annotations

from ..cpu.int8_entries import ENTRIES as INT8_KERNELS
from ..plugin import (
    Activation,
    AttentionBackend,
    BeamTopK,
    Cell,
    Initialiser,
    Int8Kernel,
    NodeKind,
    Norm,
    Placement,
    PositionScheme,
    ScoreFilter,
    ScoreFunction,
    SublayerKind,
    WeightMap,
    hookimpl,
)
from .activation.entries import ENTRIES as ACTIVATIONS
from .attention.entries import ENTRIES as BACKENDS
from .cell.entries import ENTRIES as CELLS
from .init.entries import ENTRIES as INITIALISERS
from .node.entries import ENTRIES as NODES
from .norm.entries import ENTRIES as NORMS
from .placement.entries import ENTRIES as PLACEMENTS
from .position.entries import ENTRIES as POSITIONS
from .score.entries import ENTRIES as SCORES
from .score_filter.entries import ENTRIES as SCORE_FILTERS
from .sublayer.entries import ENTRIES as SUBLAYERS

_SUMMARIES = {
    "albert": "ALBERT: encoder, masked words",
    "bart": "BART",
    "bert": "BERT: encoder, pre-training, masked words, labels of texts and of words",
    "clip": "CLIP: texts and images",
    "deit": "DeiT: encoder, labels of images",
    "distilbert": "DistilBERT: encoder, masked words, labels of texts",
    "electra": "ELECTRA: encoder, generator, discriminator",
    "gemma2": "Gemma 2",
    "gpt2": "GPT-2",
    "gpt_neox": "GPT-NeoX, Pythia",
    "gptj": "GPT-J",
    "llama": "Llama 1 to 3",
    "m2m_100": "M2M-100, NLLB without experts",
    "marian": "Marian, OPUS-MT",
    "mbart": "mBART",
    "mistral": "Mistral 7B",
    "modernbert": "ModernBERT: encoder, masked words",
    "olmo2": "OLMo 2",
    "pegasus": "Pegasus",
    "qwen3": "Qwen3 without experts",
    "roberta": "RoBERTa, XLM-R, CamemBERT: encoder, masked words, labels of texts",
    "t5": "T5, T5 1.1, Flan-T5, mT5",
    "vit": "ViT: labels of images",
    "whisper": "Whisper",
}
WEIGHT_MAPS = [WeightMap(name=name, summary=text, file=f"tfkit.interop:maps/{name}.yaml") for name, text in _SUMMARIES.items()]


BEAM_TOP_K = [
    BeamTopK(
        name="torch",
        summary="log-softmax, the largest of groups of tokens, and top-k of these groups, in operators of torch",
        needs=(),
        select="tfkit.generate.top_k:best_continuations",
        relative_time=1.0,
    )
]


@hookimpl
def tfkit_attention_backends() -> list[AttentionBackend]:
    return BACKENDS


@hookimpl
def tfkit_score_functions() -> list[ScoreFunction]:
    return SCORES


@hookimpl
def tfkit_position_schemes() -> list[PositionScheme]:
    return POSITIONS


@hookimpl
def tfkit_norms() -> list[Norm]:
    return NORMS


@hookimpl
def tfkit_placements() -> list[Placement]:
    return PLACEMENTS


@hookimpl
def tfkit_activations() -> list[Activation]:
    return ACTIVATIONS


@hookimpl
def tfkit_cells() -> list[Cell]:
    return CELLS


@hookimpl
def tfkit_sublayer_kinds() -> list[SublayerKind]:
    return SUBLAYERS


@hookimpl
def tfkit_node_kinds() -> list[NodeKind]:
    return NODES


@hookimpl
def tfkit_initialisers() -> list[Initialiser]:
    return INITIALISERS


@hookimpl
def tfkit_weight_maps() -> list[WeightMap]:
    return WEIGHT_MAPS


@hookimpl
def tfkit_score_filters() -> list[ScoreFilter]:
    return SCORE_FILTERS


@hookimpl
def tfkit_int8_kernels() -> list[Int8Kernel]:
    return INT8_KERNELS


@hookimpl
def tfkit_beam_top_k() -> list[BeamTopK]:
    return BEAM_TOP_K
