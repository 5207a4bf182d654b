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


@dataclass(frozen=True, kw_only=True)
class Feature:
    """One feature of an attention call.

    Args:
        name: its field of `AttentionRequest`.
        capability: its field of `Capabilities`.
        words: the feature, as the refusal of a call names it.
        reason: why a backend without it refuses a request.
        in_call: whether a call has it; None if its inputs do not show it.
        in_site: whether an attention site of a spec needs it.
        option: the option of an attention sub-layer that asks for it; "" if no option does.
    """

    name: str
    capability: str
    words: str = ""
    reason: str
    in_call: Callable[[AttentionInputs], bool] | None = None
    in_site: Callable[[AttentionSite], bool] = lambda site: False
    option: str = ""

    def declared(self, can: Capabilities) -> bool:
        """Whether a backend declares it.

        Args:
            can: the capabilities of the backend.

        Returns:
            True if calls with the feature are allowed.
        """
        return getattr(can, self.capability) not in (False, "none")

    def wanted(self, request: AttentionRequest) -> bool:
        """Whether a request needs it; not, if the request leaves that open.

        Args:
            request: the requirements of a class of calls.

        Returns:
            True if a backend must declare the feature.
        """
        return bool(getattr(request, self.name))


@dataclass(frozen=True, kw_only=True)
class ScoreSetting(Feature):
    """A number that changes the scores before the bias is added. Options, sites, calls and capabilities name it alike.

    Args:
        examples: numbers that the conformance suite draws, the usual one first.
        positive: only numbers above 0 are allowed.
    """

    examples: tuple[float, ...]
    positive: bool


def score_setting(name: str, examples: tuple[float, ...], positive: bool) -> ScoreSetting:
    """The feature of a number that changes the scores."""
    return ScoreSetting(
        name=name,
        capability=name,
        words=name,
        reason=f"{name} is not declared",
        in_call=lambda call: getattr(call, name) is not None,
        in_site=lambda site: getattr(site, name) is not None,
        option=name,
        examples=examples,
        positive=positive,
    )


FEATURES: tuple[Feature, ...] = (
    Feature(
        name="tensor_offset",
        capability="tensor_offset",
        words="an offset per batch row",
        reason="an offset per batch row is not declared",
        in_call=lambda call: call.mask.offset is not None and not isinstance(call.mask.offset, int),
    ),
    Feature(
        name="dropout",
        capability="dropout",
        words="dropout",
        reason="dropout is not declared",
        in_call=lambda call: call.dropout > 0.0,
        in_site=lambda site: site.dropout > 0.0,
        option="dropout",
    ),
    Feature(
        name="weights",
        capability="weights",
        words="attention weights",
        reason="it returns no attention weights",
        in_call=lambda call: call.return_weights,
    ),
    Feature(
        name="lse",
        capability="lse",
        words="the log-sum-exp",
        reason="it returns no log-sum-exp",
        in_call=lambda call: call.return_lse,
    ),
    Feature(
        name="grouped",
        capability="grouped_queries",
        words="fewer key/value heads than query heads",
        reason="fewer key/value heads than query heads are not declared",
        in_call=lambda call: call.query.shape[1] != call.value.shape[1],
        in_site=lambda site: site.heads != site.kv_heads,
        option="num_kv_heads",
    ),
    score_setting("softcap", examples=(1.5, 0.75, 20.0), positive=True),
    Feature(name="gradients", capability="backward", reason="it has no backward"),
    Feature(name="deterministic", capability="deterministic_backward", reason="its backward is not deterministic"),
    Feature(name="compiled", capability="compile", reason="it does not work under torch.compile"),
    Feature(name="exported", capability="export", reason="it does not work under torch.export"),
)
"""The features, in the order in which a refusal names them."""

SCORE_SETTINGS = tuple(feature for feature in FEATURES if isinstance(feature, ScoreSetting))
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
