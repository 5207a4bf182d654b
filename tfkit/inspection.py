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

from .attention.capabilities import AttentionRequest
from .lazy_names import lazy_names
from .slots import activation, norm, placement, position

if TYPE_CHECKING:
    from .attention.auto_table import measured_on as measured_on, parse_table as parse_table
    from .attention.backend import Verdict as Verdict, check_request as check_request
    from .attention.capabilities import BIAS_KINDS as BIAS_KINDS, MASK_TERMS as MASK_TERMS
    from .attention.choice import BackendChoice as BackendChoice, BoundBackend as BoundBackend, bind as bind
    from .attention.dispatch import attend as attend
    from .attention.features import (
        FEATURES as FEATURES,
        SCORE_SETTINGS as SCORE_SETTINGS,
        features_of as features_of,
    )
    from .attention.types import BIAS_NAMES as BIAS_NAMES
    from .builder import materialise as materialise
    from .catalogue import Catalogue
    from .certificate import (
        Certificate as Certificate,
        Comparison as Comparison,
        certificate_of as certificate_of,
        certificate_text as certificate_text,
        compare_certificate as compare_certificate,
        part_source as part_source,
        read_certificate as read_certificate,
    )
    from .cpu.float32 import float32_kernel_here as float32_kernel_here
    from .cpu.int8 import Int8Weight as Int8Weight
    from .cpu.product_table import product_kernels as product_kernels, product_machine as product_machine
    from .graph import Node as Node, Target as Target, max_input_lengths as max_input_lengths
    from .graph.flash_implementation import flash_implementation as flash_implementation
    from .graph.model_graph import layers_of as layers_of
    from .graph.plan import request_for as request_for
    from .io.saveable import check_described as check_described
    from .nn.attention_head import AttentionHead as AttentionHead
    from .nn.heads import Classify as Classify, Dense as Dense, SpanLogits as SpanLogits
    from .nn.layers import SharedTable as SharedTable
    from .nn.model import Model
    from .nn.runtime.node_output import Padding as Padding
    from .nn.stack import Stack as Stack
    from .nn.tokens import TokenLogits as TokenLogits, Tokens as Tokens
    from .slots.layer import sequence as sequence
    from .slots.options import CONTRACT as CONTRACT, Entry as Entry, field_annotations as field_annotations

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


__getattr__, __dir__, __all__ = lazy_names(__name__, ("CLAIMS", "catalogue_of", "served_requests"))
