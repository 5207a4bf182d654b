"""Names for tools that inspect and verify models, in addition to `tfkit`, `tfkit.plugin` and `tfkit.plugin.model_parts`.

    backends   checks of requests against capabilities, the backend choice of a site, the tables of `auto`
    spec       slot entries, layer patterns, the nodes of the graph, the requests of sites, input lengths
    model      the attention sites and the blocks of a built model
    proofs     certificates of the conformance suite
    products   the kernels of products while decoding on a CPU, int8 weights, and the machine that a table of them is for

Importing this imports no torch. Names that need torch are imported when first used.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from .attention.auto_table import measured_on, parse_table
from .attention.backend import Verdict, check_request
from .attention.capabilities import BIAS_KINDS, MASK_TERMS, AttentionRequest
from .attention.features import FEATURES, SCORE_SETTINGS, features_of
from .certificate import (
    Certificate,
    Comparison,
    certificate_of,
    certificate_text,
    compare_certificate,
    part_source,
    read_certificate,
)
from .graph import Node, Target, max_input_lengths
from .graph.flash_implementation import flash_implementation
from .graph.model_graph import layers_of
from .graph.plan import request_for
from .lazy_names import lazy_names
from .slots import activation, norm, placement, position
from .slots.layer import sequence
from .slots.options import CONTRACT, Entry, field_annotations

if TYPE_CHECKING:
    from .attention.choice import BackendChoice, BoundBackend, bind
    from .attention.dispatch import attend
    from .attention.types import BIAS_NAMES
    from .builder import materialise
    from .catalogue import Catalogue
    from .cpu.float32 import float32_kernel_here
    from .cpu.int8 import Int8Weight
    from .cpu.product_table import product_kernels, product_machine
    from .io.saveable import check_described
    from .nn.attention_head import AttentionHead
    from .nn.heads import Classify, Dense
    from .nn.layers import SharedTable
    from .nn.model import Model
    from .nn.runtime.node_output import Padding
    from .nn.span_logits import SpanLogits
    from .nn.stack import Stack
    from .nn.tokens import TokenLogits, Tokens

CLAIMS: dict[str, frozenset[str]] = {
    "activation": activation.CLAIMS,
    "norm": norm.CLAIMS,
    "placement": placement.CLAIMS,
    "position": frozenset().union(*position.USUAL_CLAIMS.values()),
}
"""By slot, the properties that an entry may claim."""


def catalogue_of(model: Model) -> Catalogue:
    """The catalogue that a model was built with.

    Args:
        model: a built model.

    Returns:
        The catalogue.
    """
    catalogue: Catalogue = model.backends.resolve.catalogue  # type: ignore[attr-defined]
    return catalogue


def served_requests(choice: BackendChoice) -> Iterator[tuple[AttentionRequest, BoundBackend]]:
    """The classes of calls of a site so far.

    Args:
        choice: the backend choice of the site.

    Returns:
        The request of each class, with the backend that serves it.
    """
    for call, index in choice.decided.items():
        yield call.request(), choice.candidates[index]


_IMPORTS_TORCH = {
    "tfkit.attention.choice": ("BackendChoice", "BoundBackend", "bind"),
    "tfkit.attention.dispatch": ("attend",),
    "tfkit.attention.types": ("BIAS_NAMES",),
    "tfkit.builder": ("materialise",),
    "tfkit.io.saveable": ("check_described",),
    "tfkit.nn.attention_head": ("AttentionHead",),
    "tfkit.cpu.float32": ("float32_kernel_here",),
    "tfkit.cpu.int8": ("Int8Weight",),
    "tfkit.cpu.product_table": ("product_kernels", "product_machine"),
    "tfkit.nn.layers": ("SharedTable",),
    "tfkit.nn.heads": ("Classify", "Dense"),
    "tfkit.nn.runtime.node_output": ("Padding",),
    "tfkit.nn.span_logits": ("SpanLogits",),
    "tfkit.nn.stack": ("Stack",),
    "tfkit.nn.tokens": ("TokenLogits", "Tokens"),
}

__all__ = [
    "AttentionHead",
    "BIAS_KINDS",
    "BIAS_NAMES",
    "BackendChoice",
    "BoundBackend",
    "CLAIMS",
    "CONTRACT",
    "Certificate",
    "Classify",
    "Comparison",
    "Dense",
    "Entry",
    "FEATURES",
    "Int8Weight",
    "MASK_TERMS",
    "Node",
    "Padding",
    "SCORE_SETTINGS",
    "SharedTable",
    "SpanLogits",
    "Stack",
    "Target",
    "TokenLogits",
    "Tokens",
    "Verdict",
    "attend",
    "bind",
    "catalogue_of",
    "certificate_of",
    "certificate_text",
    "check_described",
    "check_request",
    "compare_certificate",
    "features_of",
    "field_annotations",
    "flash_implementation",
    "float32_kernel_here",
    "layers_of",
    "materialise",
    "max_input_lengths",
    "measured_on",
    "parse_table",
    "part_source",
    "product_kernels",
    "product_machine",
    "read_certificate",
    "request_for",
    "sequence",
    "served_requests",
]

__getattr__, __dir__ = lazy_names(__name__, _IMPORTS_TORCH, __all__)
