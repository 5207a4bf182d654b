"""A law: a property of every part of a slot, or of every part that claims it, checked on drawn cases.

A case is a mapping that JSON can hold: the options, the structure (sizes, positions) that the law drew, the dtype and the seed
of the numbers. The same case always gives the same tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import torch
from torch import Tensor, nn

from tfkit import Catalogue, Diagnostic, InputError
from tfkit.inspection import materialise
from tfkit.plugin.model_parts import FeedForward, load

from ..attention.bound import SMALLEST, UNIT
from ..attention.case import DTYPES
from ..differences import at_element, differing, error_ratio, first_of, worst_of
from ..finding import Violation
from ..raised import format_exception

Structure = dict[str, Any]
"""What a law draws for a case: sizes, positions, choices; JSON can hold it."""


class Excluded(Exception):
    """The declaration of the part leaves no case for this law: a table of one position has no order."""


@dataclass(frozen=True)
class PartUnderTest:
    """The part under test. `make` is the function that its entry names as `build` or `function`; `block` is the feed-forward
    layer around an activation. Mutants replace them."""

    slot: str
    entry: Any
    make: Callable[..., Any]
    catalogue: Catalogue
    distribution: str = ""
    block: Callable[..., Any] = FeedForward

    @property
    def mathematics(self) -> str:
        """The name under which the equation of this part is known."""
        return str(self.entry.same_as or self.entry.name)


def part_under_test(catalogue: Catalogue, slot: str, entry: Any) -> PartUnderTest:
    """The part as its plugin registers it. Raises PluginError where its code cannot be imported, and InputError where it has
    none: the score `dot` is part of the attention contract."""
    offer = catalogue.registered[slot].get(entry.name)
    if slot == "score" and entry.build is None:
        message = f"the score `{entry.name}` is the dot product of the attention contract and has no code of its own"
        raise InputError(Diagnostic("TFK094", message, "attention backends are checked with it: tfkit conformance BACKEND"))
    reference = entry.function if slot == "activation" else entry.build
    return PartUnderTest(slot, entry, load(reference), catalogue, offer.distribution if offer else "")


@dataclass(frozen=True)
class Law:
    """`rule` says the law with its equation; `applies(subject, options)` whether it concerns the part; `draw` gives the
    structure of a case, or raises Inconclusive or Excluded if there is none; `evaluate` raises Violation, or returns the
    largest error as a share of its bound, or None where it is exact. `shrinks` gives the least value of each size that may be
    made smaller; a law that is no matter of rounding is evaluated in one dtype."""

    name: str
    rule: str
    applies: Callable[[PartUnderTest, Any], bool]
    draw: Callable[[PartUnderTest, Any, Random], Structure]
    evaluate: Callable[[LawExample], float | None]
    shrinks: Mapping[str, int] = field(default_factory=dict)
    dtypes: tuple[str, ...] = ()


def always(subject: PartUnderTest, options: Any) -> bool:
    """Applies to every part of the slot."""
    return True


def claims(name: str) -> Callable[[PartUnderTest, Any], bool]:
    """Applies to parts that claim a property."""

    def applies(subject: PartUnderTest, options: Any) -> bool:
        try:
            return name in subject.entry.claimed(options)
        except Exception:  # the law `declaration` reports why
            return False

    return applies


def known_as(*names: str) -> Callable[[PartUnderTest, Any], bool]:
    """Applies to parts with one of these equations."""
    return lambda subject, options: subject.mathematics in names


SINGLE = UNIT[torch.float32]


class LawExample:
    """`at` is the structure that the law drew; `dtype` and `device` those of the tensors."""

    def __init__(
        self, law: str, subject: PartUnderTest, options: Any, at: Structure, dtype: str, device: str, seed: int
    ) -> None:
        self.law, self.subject, self.options, self.at = law, subject, options, at
        self.entry, self.dtype, self.device = subject.entry, DTYPES[dtype], torch.device(device)
        self.generator = torch.Generator().manual_seed(seed)

    @property
    def unit(self) -> float:
        """The unit roundoff of the dtype."""
        return UNIT[self.dtype]

    @property
    def tiny(self) -> float:
        """What underflow may take."""
        return SMALLEST[self.dtype]

    def normal(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        """Normally distributed numbers, rounded to the dtype."""
        drawn = torch.randn(shape, generator=self.generator, dtype=torch.float64)
        return drawn.to(self.dtype if dtype is None else dtype).to(self.device)

    def built(self, *where: Any, dtype: torch.dtype | None = None) -> nn.Module:
        """The module as a model holds it: made without storage, then given drawn weights, none of them 0, all of them held
        exactly by every dtype."""
        module = self.bare(*where)
        materialise(module, self.device, self.dtype if dtype is None else dtype)
        with torch.no_grad():
            for tensor in (*module.parameters(), *module.buffers()):
                drawn = torch.randn(tensor.shape, generator=self.generator, dtype=torch.float64)
                steps = (drawn * 32).round()
                tensor.copy_(torch.where(steps == 0, 1.0, steps) / 32)
            for buffer in module.buffers():  # a variance is positive
                buffer.abs_()
        return module.eval() if getattr(self.entry, "over_batch", False) else module

    def bare(self, *where: Any) -> nn.Module:
        """The module on the meta device."""
        with torch.device("meta"):
            module = self.subject.make(self.options, *where)
        if not isinstance(module, nn.Module):
            raise self.broken(f"its build gives a {type(module).__name__}, no nn.Module")
        return module

    def twin(self, module: nn.Module, *where: Any, dtype: torch.dtype = torch.float64) -> nn.Module:
        """A second module with the same weights in another dtype."""
        other = self.bare(*where)
        materialise(other, self.device, dtype)
        weights = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        with torch.no_grad():
            for name, tensor in (*other.named_parameters(), *other.named_buffers()):
                tensor.copy_(weights[name])
        return other.train(module.training)

    # ---- comparisons

    def broken(self, message: str, **numbers: Any) -> Violation:
        """The violation of this law."""
        return Violation(self.law, message, **numbers)

    def alike(self, what: str, got: object, shape: Sequence[int], dtype: torch.dtype | None = None) -> Tensor:
        """`got`, which must be a tensor of this shape, of the example's dtype and on its device."""
        if not isinstance(got, Tensor):
            raise self.broken(f"{what} is a {type(got).__name__}, no tensor")
        if tuple(got.shape) != tuple(shape):
            raise self.broken(f"{what} has shape {tuple(got.shape)}, expected {tuple(shape)}", tensor=what)
        if dtype is not None and got.dtype != dtype:
            raise self.broken(f"{what} is {got.dtype} where the input is {dtype}", tensor=what)
        if got.device.type != self.device.type:
            raise self.broken(f"{what} is on {got.device}, not on {self.device}", tensor=what)
        return got

    def finite(self, what: str, got: Tensor) -> None:
        """Every number must be finite."""
        bad = ~got.detach().isfinite()
        if bool(bad.any()):
            index = first_of(bad)
            raise self.broken(f"{what} is {got[index].item()} at {list(index)}", tensor=what, index=index)

    def equal(self, message: str, got: Tensor, want: Tensor, what: str = "output") -> None:
        """Every bit must be the same; `message` says what is wrong otherwise."""
        got, want = got.detach(), want.detach()
        if got.shape != want.shape:
            raise self.broken(f"{message}: shape {tuple(got.shape)} against {tuple(want.shape)}", tensor=what)
        wrong = differing(got, want)
        if bool(wrong.any()):
            index = first_of(wrong)
            raise at_element(self.law, f"{message}, at {list(index)}", what, index, got, want, 0.0)

    def within(self, message: str, got: Tensor, want: Tensor, bound: Tensor | float, what: str = "output") -> float:
        """The largest |got - want| / bound, which must be at most 1; `message` says what is wrong otherwise."""
        if got.shape != want.shape:
            raise self.broken(f"{message}: shape {tuple(got.shape)} against {tuple(want.shape)}", tensor=what)
        worst, index = worst_of(error_ratio(got, want, bound))
        if worst > 1.0:
            raise at_element(self.law, f"{message}, at {list(index)}", what, index, got, want, bound)
        return worst

    def differs(self, message: str, one: Tensor, other: Tensor) -> None:
        """At least one number must not be the same; `message` says what is wrong otherwise."""
        if torch.equal(one.detach(), other.detach()):
            raise self.broken(message)

    def refuses(self, message: str, error: type[Exception], call: Callable[[], object]) -> None:
        """The call must raise `error`; `message` says what is wrong otherwise."""
        try:
            call()
        except error:
            return
        except Exception as other:  # any other exception is a violation too
            raise self.broken(f"{message}; it raised {format_exception(other)} in place of {error.__name__}") from other
        raise self.broken(message)
