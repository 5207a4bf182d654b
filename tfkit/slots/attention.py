"""Attention backend: one function that computes softmax(scale q k^T + bias, masked) v, and a declaration of what it can do.

Every axis of `Capabilities` defaults to "no". The same object answers the static check of a spec, `auto`, `tfkit plan`, the
support table of the README and the conformance tests: what is declared must work, what is not declared is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator

from .options import Entry, Options

MASK_TERMS = ("causal", "window", "key_lengths", "query_lengths", "key_visible", "segments", "visible")
"""The terms a mask may have, in the order of `tfkit.attention.Mask`."""

BIAS_KINDS = ("dense", "linear", "distance")
"""The kinds of bias a call may have."""


def _frozen(value: Any) -> Any:
    """A list or a set as a frozen set. What is neither, or holds lists, is left to the check of its type."""
    try:
        return value if isinstance(value, str) else frozenset(value)
    except TypeError:
        return value


Names = Annotated[frozenset[str], BeforeValidator(_frozen)]


class Range(Options):
    """Whole numbers from `minimum` to `maximum` (None: no end) that are multiples of `multiple`."""

    minimum: int = 1
    maximum: int | None = None
    multiple: int = 1

    def __contains__(self, number: int) -> bool:
        return self.minimum <= number <= (self.maximum or number) and number % self.multiple == 0

    def __str__(self) -> str:
        end = f"to {self.maximum}" if self.maximum else "up"
        return f"{self.minimum} {end}" + (f", multiples of {self.multiple}" if self.multiple > 1 else "")


class Device(Options):
    """A kind of device (`cpu`, `cuda`), on CUDA from a compute capability up: (9, 0) is Hopper."""

    kind: str
    minimum_capability: tuple[int, int] | None = None


class Numerics(Options):
    """Where a backend rounds; the error bound that judges it is computed from this.

    `scores`, `probabilities` and `gradients` say whether these are kept in the accumulation type or rounded to the storage
    type on the way; `query_prescaled` that scale * query is rounded to the storage type before its product with the key;
    `tf32` that float32 products may be computed in TF32 when torch's own switch allows it. `grade` promises an accuracy
    beyond the bound (`tfkit.testing.suite.grade`), A or B, and is judged only where it is promised.
    """

    scores: Literal["accumulation", "storage"] = "accumulation"
    probabilities: Literal["accumulation", "storage"] = "storage"
    gradients: Literal["accumulation", "storage"] = "accumulation"
    query_prescaled: bool = False
    tf32: bool = False
    grade: Literal["A", "B"] | None = None


class Capabilities(Options):
    """What a backend can do, axis by axis of the contract. `scores` names score functions, `*` standing for any."""

    devices: Annotated[tuple[Device, ...], BeforeValidator(tuple)] = ()
    dtypes: Names = frozenset()
    head_dim: Range | None = None
    value_dim_differs: bool = False
    query_length: Range | None = None
    key_length: Range | None = None
    mask_terms: Names = frozenset()
    tensor_offset: bool = False
    bias_kinds: Names = frozenset()
    bias_gradient: Names = frozenset()
    dropout: bool = False
    weights: Literal["none", "detached", "differentiable"] = "none"
    lse: bool = False
    grouped_queries: bool = False
    softcap: bool = False
    scores: Names = frozenset({"dot"})
    backward: bool = False
    double_backward: bool = False
    deterministic_backward: bool = False
    batch_invariant: bool = False
    compile: bool = False
    export: bool = False
    numerics: Numerics = Numerics()


@dataclass(frozen=True)
class AttentionRequest:
    """What one attention site asks of a backend, for one class of calls. None means: not known before the call."""

    device: str | None = None
    cuda_capability: tuple[int, int] | None = None
    dtype: str | None = None
    head_dim: int | None = None
    value_dim: int | None = None
    queries: int | None = None
    keys: int | None = None
    mask_terms: frozenset[str] = frozenset()
    tensor_offset: bool = False
    bias: str | None = None
    bias_gradient: bool = False
    dropout: bool = False
    weights: bool = False
    lse: bool = False
    grouped: bool = False
    softcap: bool = False
    score: str = "dot"
    gradients: bool | None = None
    deterministic: bool = False
    compiled: bool = False
    exported: bool = False


@dataclass(frozen=True)
class KnownFailure:
    """A check that its author knows to fail, shown in every report and never called conformant. `case` is the stored case (a
    finding's `case`), which must still fail in `check`: a known failure that passes is an error. Drawn cases that have all
    features in `where` (entries of `tfkit.testing.attention.cells.plan_of`, such as {"terms": ["segments"]}) are not judged
    anew."""

    check: str
    reason: str
    case: Mapping[str, Any]
    where: Mapping[str, Any]
    issue: str = ""


@dataclass(frozen=True)
class Verdict:
    """Why a backend refuses a request, and on what still unknown facts its answer depends."""

    refused: tuple[str, ...] = ()
    depends: tuple[str, ...] = ()

    @property
    def accepted(self) -> bool:
        return not self.refused


class AutoRow(Options):
    """One row of the table that `auto` goes by: on this class of calls the backend takes `relative_time` times as
    long as `eager` on the same call. None in a condition means: any. `lengths` bounds max(Q, K), both ends included.
    `masked`: by anything but causality; `biased`: any bias; `decoding`: a single query. `capability` is the CUDA compute
    capability that it was measured on. `measured` says on what; `published` links to the figure where it is somebody else's."""

    device: str
    capability: tuple[int, int] | None = None
    dtypes: Names
    lengths: tuple[int, int | None] = (1, None)
    gradients: bool | None = None
    dropout: bool | None = None
    masked: bool | None = None
    biased: bool | None = None
    bias_gradient: bool | None = None
    decoding: bool | None = None
    compiled: bool | None = None
    relative_time: float
    measured: str = ""
    published: str = ""

    def covers(self, request: AttentionRequest) -> bool:
        """Whether the row speaks of this class of calls. An unknown length counts as long, unknown gradients as wanted."""
        length = max(request.queries or 2**40, request.keys or 2**40)
        wanted = {
            "gradients": request.gradients is not False,
            "dropout": request.dropout,
            "masked": bool(request.mask_terms - {"causal"}),
            "biased": request.bias is not None,
            "bias_gradient": request.bias_gradient,
            "decoding": request.queries == 1,
            "compiled": request.compiled,
        }
        return (
            request.device in (None, self.device)
            and (self.capability is None or request.cuda_capability in (None, self.capability))
            and (request.dtype is None or request.dtype in self.dtypes)
            and self.lengths[0] <= length <= (self.lengths[1] or length)
            and all(getattr(self, name) in (None, value) for name, value in wanted.items())
        )


@dataclass(frozen=True, kw_only=True)
class AttentionBackend(Entry):
    """`attend`, a `"module:function"`, is called as `attend(inputs, options)` and gives an `AttentionOutput`
    (`tfkit.attention`). `unsupported(request, options)` adds reasons that no single axis can say; it must be monotone:
    asking for less never adds a reason. `prepare`, a `"module:function"`, is called as
    `prepare(mask, bias, shapes, options)` once per stack and forward; its result reaches every layer as `inputs.prepared`.
    `auto` holds the measured rows by which `auto` may choose this backend, written down or in files (`AutoTable`); the first
    that covers a call counts, and with none, `auto` never does. `known_failures` lists the checks that it is known to fail.
    `threads` says that several threads may be in `attend` and `prepare` at once; a search by any other backend takes one batch
    after the other.
    """

    attend: str
    capabilities: Capabilities
    unsupported: Callable[[AttentionRequest, Any], tuple[str, ...]] = lambda request, options: ()
    prepare: str | None = None
    auto: Sequence[AutoRow] = ()
    known_failures: tuple[KnownFailure, ...] = ()
    threads: bool = False


AUTO = Entry(name="auto", summary="the fastest backend that is measured and right for each class of calls")
"""`backend: auto`, a word of the language rather than a backend: it lets the measured rows choose."""


def judge(backend: AttentionBackend, request: AttentionRequest, options: Any) -> Verdict:
    """Every reason why `backend` cannot serve `request`; what it does not declare, it cannot do."""
    can = backend.capabilities
    refused: list[str] = []
    depends: list[str] = []

    def ask(value: Any, name: str, fits: Callable[[Any], bool], reason: Callable[[Any], str]) -> None:
        if value is None:
            depends.append(name)
        elif not fits(value):
            refused.append(reason(value))

    ask(request.device, "the device", lambda kind: any(kind == device.kind for device in can.devices),
        lambda kind: f"device {kind} is not among {_names(device.kind for device in can.devices)}")  # fmt: skip
    if request.device is not None:
        _check_capability(can, request, refused, depends)
    ask(request.dtype, "the dtype", lambda dtype: dtype in can.dtypes,
        lambda dtype: f"dtype {dtype} is not among {_names(can.dtypes)}")  # fmt: skip
    for name, value, allowed in (
        ("head_dim", request.head_dim, can.head_dim),
        ("query length", request.queries, can.query_length),
        ("key length", request.keys, can.key_length),
    ):
        if allowed is None:
            refused.append(f"no {name} is declared")
        elif value is None:
            if (allowed.minimum, allowed.maximum, allowed.multiple) != (1, None, 1):
                depends.append(f"the {name}")
        elif value not in allowed:
            refused.append(f"{name} {value} is outside {allowed}")
    if request.value_dim is not None and request.value_dim != request.head_dim and not can.value_dim_differs:
        refused.append(f"value dim {request.value_dim} differs from head_dim {request.head_dim}")
    for term in sorted(request.mask_terms - can.mask_terms):
        refused.append(f"mask term {term} is not declared")
    if request.bias is not None and request.bias not in can.bias_kinds:
        refused.append(f"{request.bias} bias is not declared")
    elif request.bias is not None and request.bias_gradient and request.bias not in can.bias_gradient:
        refused.append(f"no gradient for a {request.bias} bias")
    if not {request.score, "*"} & can.scores:
        refused.append(f"score function {request.score} is not declared")
    for wanted, able, reason in (
        (request.tensor_offset, can.tensor_offset, "an offset per batch row is not declared"),
        (request.dropout, can.dropout, "dropout is not declared"),
        (request.weights, can.weights != "none", "it returns no attention weights"),
        (request.lse, can.lse, "it returns no log-sum-exp"),
        (request.grouped, can.grouped_queries, "fewer key/value heads than query heads are not declared"),
        (request.softcap, can.softcap, "softcap is not declared"),
        (request.gradients, can.backward, "it has no backward"),
        (request.deterministic and request.gradients, can.deterministic_backward, "its backward is not deterministic"),
        (request.compiled, can.compile, "it does not work under torch.compile"),
        (request.exported, can.export, "it does not work under torch.export"),
    ):
        if wanted and not able:
            refused.append(reason)
    if request.gradients is None and not can.backward:
        depends.append("whether gradients are wanted")
    refused.extend(backend.unsupported(request, options))
    return Verdict(tuple(refused), tuple(depends))


def _check_capability(can: Capabilities, request: AttentionRequest, refused: list[str], depends: list[str]) -> None:
    needs = [device.minimum_capability for device in can.devices if device.kind == request.device]
    if not needs or None in needs:
        return
    lowest = min(need for need in needs if need)
    if request.cuda_capability is None:
        depends.append("the compute capability")
    elif request.cuda_capability < lowest:
        have, need = (f"sm_{major}{minor}" for major, minor in (request.cuda_capability, lowest))
        refused.append(f"{have} is older than {need}")


def _names(names: Any) -> str:
    return ", ".join(sorted(names)) or "none"
