"""The features that an attention call has or has not, and a backend declares or lacks, in one table.

The check of a request, the class of a call, the requests of the sites of a spec, the refusal of a call and the conformance
suite read `FEATURES`. What has more than two values is not in it: sizes, dtypes, mask terms, kinds of bias and score functions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..slots.sublayer import AttentionSite
from .capabilities import AttentionRequest, Capabilities

if TYPE_CHECKING:
    from .types import AttentionInputs


@dataclass(frozen=True)
class Feature:
    """One feature of an attention call.

    Args:
        name: its field of `AttentionRequest`.
        capability: its field of `Capabilities`.
        reason: why a backend without it refuses a request.
        words: the feature, as the refusal of a call names it.
        in_call: whether a call has it; None if its inputs do not show it.
        in_site: whether an attention site of a spec needs it.
        option: the option of an attention sub-layer that asks for it; "" if no option does.
        examples: numbers that the conformance suite draws, of a feature that is a number.
        positive: that number must be above 0.
    """

    name: str
    capability: str
    reason: str
    words: str = ""
    in_call: Callable[[AttentionInputs], bool] | None = None
    in_site: Callable[[AttentionSite], bool] = lambda site: False
    option: str = ""
    examples: tuple[float, ...] = ()
    positive: bool = False

    def declared(self, can: Capabilities) -> bool:
        return getattr(can, self.capability) not in (False, "none")

    def wanted(self, request: AttentionRequest) -> bool:
        return bool(getattr(request, self.name))


def score_setting(name: str, examples: tuple[float, ...], positive: bool = False) -> Feature:
    """A number that changes the scores before the bias is added. Options, sites, calls and capabilities name it alike."""

    def present(owner: AttentionInputs | AttentionSite) -> bool:
        return getattr(owner, name) is not None

    return Feature(name, name, f"{name} is not declared", name, present, present, name, examples, positive)


FEATURES = (
    Feature("tensor_offset", "tensor_offset", "an offset per batch row is not declared", "an offset per batch row",
            lambda call: call.mask.offset is not None and not isinstance(call.mask.offset, int)),
    Feature("dropout", "dropout", "dropout is not declared", "dropout",
            lambda call: call.dropout > 0.0, lambda site: site.dropout > 0.0, "dropout"),
    Feature("weights", "weights", "it returns no attention weights", "attention weights", lambda call: call.return_weights),
    Feature("lse", "lse", "it returns no log-sum-exp", "the log-sum-exp", lambda call: call.return_lse),
    Feature("grouped", "grouped_queries", "fewer key/value heads than query heads are not declared",
            "fewer key/value heads than query heads", lambda call: call.query.shape[1] != call.value.shape[1],
            lambda site: site.heads != site.kv_heads, "num_kv_heads"),
    score_setting("softcap", (1.5, 0.75, 20.0), positive=True),
    Feature("gradients", "backward", "it has no backward"),
    Feature("deterministic", "deterministic_backward", "its backward is not deterministic"),
    Feature("compiled", "compile", "it does not work under torch.compile"),
    Feature("exported", "export", "it does not work under torch.export"),
)  # fmt: skip
"""The features, in the order in which a refusal names them."""

SCORE_SETTINGS = tuple(feature for feature in FEATURES if feature.examples)
"""The numbers that change the scores, in the order in which they act."""

PRESENCE = tuple((feature, feature.in_call) for feature in FEATURES if feature.in_call is not None)
"""The features that the inputs of a call show, each with its test."""


def features_of(call: AttentionInputs) -> tuple[str, ...]:
    """The features that the inputs of a call show.

    Args:
        call: the call.

    Returns:
        Their names, which are fields of `AttentionRequest`.
    """
    return tuple([feature.name for feature, present in PRESENCE if present(call)])
