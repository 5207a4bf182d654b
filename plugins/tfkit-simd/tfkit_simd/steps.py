"""Decoding steps without Python: the operations of a step are recorded once with the tensors they read and write, and run again
on the same memory by one call of C (../source/steps.h).

A step of a small model takes hundreds of operations of torch, each of which costs more than its arithmetic. Recording is like
that of a CUDA graph: numbers and shapes are those of the recording, weights stay, and what varies is read from tensors.
Operations on weights alone are not repeated. Attention and products are those of the other kernels of this package.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from tfkit.plugin import (
    AttentionInputs,
    AttentionOutput,
    BackendRefused,
    Bias,
    CannotRecord,
    Mask,
    Prepared,
    RecordedBeams,
    Shapes,
    dense_bias,
    recording_attention,
    recording_heads,
    require_capabilities,
    shapes_of,
    visible,
)

from . import SIMD, SimdOptions, int8
from ._kernels import run_beams, run_greedy, run_step
from .attention import in_torch
from .float32 import Packed, pack

CODES = {name: code for code, name in enumerate((
    "map", "reduce", "layer_norm", "take_rows", "live_keys", "slots", "product", "int8_product", "refine", "listed",
    "attend",
))}  # fmt: skip
FUNCTIONS = {name: code for code, name in enumerate((
    "copy", "add", "sub", "mul", "div", "maximum", "minimum", "pow", "neg", "abs", "relu", "sin", "cos", "exp", "log", "tanh",
    "sigmoid", "silu", "gelu", "gelu_tanh", "erf", "sqrt", "rsqrt", "lt", "le", "gt", "ge", "eq", "ne", "logical_and",
    "logical_or", "logical_not", "where",
))}  # fmt: skip
REDUCTIONS = {name: code for code, name in enumerate(("sum", "mean", "amax", "any", "all"))}
NAMES = list(CODES)
TYPES = {dtype: code for code, dtype in enumerate((torch.float32, torch.float64, torch.int64, torch.bool))}
BOOLEAN = {"bitwise_not": "logical_not", "bitwise_and": "logical_and", "bitwise_or": "logical_or"}
SAME = {**BOOLEAN, "_to_copy": "copy", "clone": "copy"}
CREATED = ("new_zeros", "new_ones", "new_full", "zeros_like", "ones_like", "full_like")
MAX_TABLES = 64
"""Heads of a table of biases, whose values are taken head by head."""
WORDS = 37
"""Numbers of an operation in the table."""
PLACES = (26, 27, 28, 29, 31, 34, 35, 36)
"""Those that are addresses."""
WRITTEN = {"live_keys": (26, 29, 31), "slots": (26, 35)}
"""Those that are addresses of results; the first one by default."""
LINE = 64
"""Bytes of a line of the processor's cache, to which the memory of a tensor is aligned."""
PLAIN_AXES = 4
STEPS = 8
"""Steps after which the sentences that are left are counted, and signals are seen."""
EARLY = {"never": 0, True: 1, False: 2}

check = require_capabilities(SIMD.name, SIMD.capabilities)


def record(avx512: bool, run: Callable[[], Any], weights: Iterable[Tensor], copies: dict[Tensor, Any]) -> tuple[Recording, Any]:
    """Record a step; see `tfkit.plugin.StepRecorder`.

    Args:
        avx512: whether the kernels use AVX-512; otherwise AVX2.
        run: the step. It reads and writes the same tensors in every run.
        weights: the tensors that stay as they are.
        copies: the packed copies of weights, which recordings share.

    Returns:
        The recording, which runs the step again when it is called, and what `run` returned, whose tensors it writes.

    Raises:
        CannotRecord: an operation of the step has no kernel here.
    """
    recorder = _Recorder(avx512, weights, copies)
    attention = recording_attention(SIMD, SimdOptions(), recorder.attend, recorder.prepare)
    token = int8.recording.set(recorder.int8_product)
    try:
        with torch.no_grad(), attention, recording_heads(recorder.refine, recorder.listed), recorder:
            result = run()
    finally:
        int8.recording.reset(token)
    kept = recorder.share_memory(_tensors_in((result,)))
    return Recording(avx512, torch.tensor(recorder.table, dtype=torch.int64, device="cpu"), kept), result


class Recording:
    """A recorded step: the table of its operations, whose tensors it keeps. A call runs it again."""

    def __init__(self, avx512: bool, table: Tensor, kept: list[Tensor]) -> None:
        self.avx512, self.table, self.kept = avx512, table, kept
        self.place = table.data_ptr(), len(table)

    def __call__(self) -> None:
        run_step(self.avx512, *self.place)


def greedy(
    avx512: bool, recording: Recording, ids: Tensor, place: Tensor, logits: Tensor, tokens: Tensor, log_probs: Tensor,
    limits: Tensor, counts: Tensor, finished: Tensor, end_id: int | None, forbidden: Tensor, length: int,
) -> int:  # fmt: skip
    """Greedy decoding by a recorded step; see `tfkit.plugin.StepRecorder`.

    Args:
        avx512: as for `record`.
        recording: what `record` returned.
        *: as there.
    """
    (batch, width), end = tokens.shape, -1 if end_id is None else end_id
    step = [tensor.data_ptr() for tensor in (ids, place, logits)]
    search = [tensor.data_ptr() for tensor in (tokens, log_probs, limits, counts, finished, forbidden)]
    rows = int(((limits > length) & ~finished).sum())
    for first in range(length, width, STEPS):
        last = min(first + STEPS, width)
        if run_greedy(
            avx512, *recording.place, *step, logits.shape[1], batch, width, first, last, end, *search, len(forbidden)
        ):
            return width
        if 2 * int(((limits > last) & ~finished).sum()) <= rows:
            return last
    return width


def beams(avx512: bool, recording: Recording, search: RecordedBeams) -> None:
    """A beam search by a recorded step; see `tfkit.plugin.StepRecorder`.

    Args:
        avx512: as for `record`.
        recording: what `record` returned.
        search: the search.
    """
    (steps, sentences, k), size = search.rows.shape, search.finished[0].shape[1]
    end, early = -1 if search.end_id is None else search.end_id, EARLY[search.early_stopping]
    step = [tensor.data_ptr() for tensor in (search.ids, search.place, search.order, search.logits)]
    inputs = (search.totals, search.limits, search.penalties, search.max_penalties, search.forbidden)
    written = (search.rows, search.tokens, search.log_probs, *search.finished, search.status)
    before = len(search.penalties) - 1 - steps
    for first in range(before, before + steps, STEPS):
        last = min(first + STEPS, before + steps)
        if run_beams(
            avx512, *recording.place, *step, search.logits.shape[1], sentences, k, size, before, first, last, end, early,
            search.ranked, *(tensor.data_ptr() for tensor in inputs), len(search.forbidden),
            *(tensor.data_ptr() for tensor in written),
        ):  # fmt: skip
            return
        if 2 * int((search.status == 0).sum()) <= sentences:
            return


class _Recorder(TorchDispatchMode):
    """Notes the operations that read what varies.

    Attributes:
        table: a row of `WORDS` integers for each operation.
        kept: the tensors whose memory the table names.
        created: bytes of each piece of memory that the step allocates, by address.
        caches: the memory that is written a position at a time.
        gathered: rows of caches that attention reads where they lie, by their memory: the cache, the index, and they.
        slots: where the live keys of every row lie, and their numbers, by the live keys and the index.
    """

    def __init__(self, avx512: bool, weights: Iterable[Tensor], copies: dict[Tensor, Any]) -> None:
        super().__init__()
        self.avx512, self.copies = avx512, copies
        self.table: list[list[int]] = []
        self.kept: list[Tensor] = []
        self.weights = {_storage(weight): weight for weight in weights}
        self.constant = set(self.weights)
        self.created: dict[int, int] = {}
        self.caches: set[int] = set()
        self.gathered: dict[int, tuple[Tensor, Tensor, Tensor]] = {}
        self.slots: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # torch would import its compiler for it, which takes longer than a translation

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), named: Any = None) -> Any:
        named = named or {}
        result = function(*arguments, **named)
        name = function.overloadpacket.__name__
        if name in ("mm", "addmm") and _storage(arguments[-2]) in self.constant:
            result = result.t().contiguous().t()  # W x^T: the kernel writes a row for each of x
        tensors = list(_tensors_in((*arguments, *named.values())))
        if name == "_local_scalar_dense":
            raise CannotRecord("a number of a tensor is read by Python")
        places = {_storage(tensor) for tensor in tensors}
        outputs = list(_tensors_in((result,)))
        self.kept += [*tensors, *outputs]
        self._note_memory(*(output for output in outputs if _storage(output) not in places))
        if function._schema.is_mutable:
            if places & self.constant:
                raise CannotRecord(f"`{name}` writes to a weight, or to a tensor that every step makes anew")
        elif places <= self.constant or name in CREATED:  # it computes the same in every run
            self.constant |= {_storage(output) for output in outputs}
            return result
        elif all(_storage(output) in places for output in outputs):  # a view
            return result
        try:
            self._gather(places, function._schema.is_mutable)
            self._note(name, arguments, named, outputs[0])
        except (AttributeError, IndexError, TypeError, ValueError) as reason:  # arguments of a form that is not known here
            raise CannotRecord(f"`{name}` has no kernel in this form: {reason}") from None
        return result

    def _note_memory(self, *tensors: Tensor) -> None:
        self.created |= {_storage(tensor): tensor.untyped_storage().nbytes() for tensor in tensors}

    def share_memory(self, results: Iterable[Tensor]) -> list[Tensor]:
        """Give the memory of what is read no more to later results, as torch does: a step then stays in the processor's caches.

        Args:
            results: the tensors that are read after the step.

        Returns:
            The tensors whose memory the table names.
        """
        stay, starts = {_storage(tensor) for tensor in results}, sorted(self.created)
        lives: dict[int, tuple[int, int]] = {}  # the first and the last operation with each piece of memory
        for number, row in enumerate(self.table):
            written = WRITTEN.get(NAMES[row[0]], PLACES[:1])
            for word in sorted(PLACES, key=written.__contains__):  # an operation reads before it writes
                start = self._start_of(row[word], starts)
                if start is None:
                    continue
                if start not in lives and word not in written:
                    stay.add(start)  # no operation computes what it holds
                lives[start] = lives.get(start, (number,))[0], number
        places: dict[int, int] = {}
        taken: list[tuple[int, int, int]] = []
        for start, (first, last) in sorted(lives.items(), key=lambda life: life[1]):
            if start in stay:
                continue
            place, size = 0, -(-self.created[start] // LINE) * LINE
            for begin, end, _ in sorted(piece for piece in taken if piece[2] >= first):
                if place + size <= begin:
                    break
                place = max(place, end)
            taken.append((place, place + size, last))
            places[start] = place
        memory = torch.empty(max((end for _, end, _ in taken), default=0) + LINE, dtype=torch.uint8, device="cpu")
        base = -(-memory.data_ptr() // LINE) * LINE
        for row in self.table:
            for word in PLACES:
                start = self._start_of(row[word], starts)
                if start in places:
                    row[word] += base + places[start] - start
        named = stay | {_storage(tensor) for tensor in self.kept} - set(self.created)
        return [memory, *(tensor for tensor in self.kept if _storage(tensor) in named)]

    def _start_of(self, address: int, starts: list[int]) -> int | None:
        """Where the piece of memory begins that the step allocated and that has this address."""
        start = starts[bisect_right(starts, address) - 1] if starts else address
        return start if start <= address < start + self.created.get(start, 0) else None

    def _note(self, name: str, arguments: Any, named: dict[str, Any], output: Tensor) -> None:
        handler = getattr(self, f"_{name.strip('_')}", None)
        if handler is not None:
            handler(output, *arguments, **named)
            return
        tensors = [self._tensor(value, output) for value in arguments]
        if name in BOOLEAN and any(tensor.dtype != torch.bool for tensor in tensors):
            raise CannotRecord(f"`{name}` of integers has no kernel")
        name = SAME.get(name, name.rstrip("_"))
        if name not in FUNCTIONS or set(named) - {"dtype", "device", "layout", "memory_format", "pin_memory", "non_blocking"}:
            raise CannotRecord(f"`{name}` has no kernel")
        self._map(name, output, *tensors)

    def _tensor(self, value: Any, output: Tensor) -> Tensor:
        """A number as a tensor, in the dtype in which torch computes with it."""
        if isinstance(value, Tensor):
            return value
        dtype = output.dtype if output.is_floating_point() else torch.float64
        number = torch.full((), float(value), dtype=dtype, device="cpu")
        self.kept.append(number)
        return number

    # The operations, by torch's names. Each handler gets the result, then what torch was given.

    def _map(self, name: str, output: Tensor, *tensors: Tensor, at: tuple[Tensor, int, int] | None = None) -> None:
        axes = [(output, output.shape), *((tensor, output.shape) for tensor in tensors)]
        sizes, strides = _merged([_broadcast(tensor, shape) for tensor, shape in axes], output.shape)
        place, stride, count = (0, 0, 0) if at is None else (at[0].data_ptr(), *at[1:])
        self._row("map", FUNCTIONS[name], sizes, strides, [output, *tensors], place=place, place_stride=stride, count=count)

    def _add(self, output: Tensor, one: Any, other: Any, alpha: float = 1) -> None:
        if alpha != 1:
            raise CannotRecord("`add` with a factor has no kernel")
        self._map("add", output, self._tensor(one, output), self._tensor(other, output))

    def _sub(self, output: Tensor, one: Any, other: Any, alpha: float = 1) -> None:
        if alpha != 1:
            raise CannotRecord("`sub` with a factor has no kernel")
        self._map("sub", output, self._tensor(one, output), self._tensor(other, output))

    def _rsub(self, output: Tensor, one: Any, other: Any, alpha: float = 1) -> None:
        self._sub(output, other, one, alpha)

    def _div(self, output: Tensor, one: Any, other: Any, rounding_mode: str | None = None) -> None:
        if rounding_mode is not None:
            raise CannotRecord("`div` with rounding has no kernel")
        self._map("div", output, self._tensor(one, output), self._tensor(other, output))

    def _gelu(self, output: Tensor, x: Tensor, approximate: str = "none") -> None:
        self._map("gelu" if approximate == "none" else "gelu_tanh", output, x)

    def _copy(self, output: Tensor, to: Tensor, source: Tensor, non_blocking: bool = False) -> None:
        self._map("copy", output, source)

    def _cumsum(self, output: Tensor, x: Tensor, axis: int, dtype: Any = None) -> None:
        if x.shape[axis] != 1:
            raise CannotRecord("running sums have no kernel")
        self._map("copy", output, x)

    def _masked_fill(self, output: Tensor, x: Tensor, mask: Tensor, value: Any) -> None:
        self._map("where", output, mask, self._tensor(value, output), x)

    def _addcmul(self, output: Tensor, x: Tensor, one: Tensor, other: Tensor, value: float = 1) -> None:
        if value != 1:
            raise CannotRecord("`addcmul` with a factor has no kernel")
        with _disable_current_modes():
            product = torch.empty(output.shape, dtype=output.dtype, device="cpu")
        self._note_memory(product)
        self._map("mul", product, one, other)
        self._map("add", output, x, product)

    def _clamp(self, output: Tensor, x: Tensor, least: Any = None, most: Any = None, **named: Any) -> None:
        least, most = named.get("min", least), named.get("max", most)
        for bound, name in ((least, "maximum"), (most, "minimum")):
            if bound is not None:
                self._map(name, output, x, self._tensor(bound, output))
                x = output
        if least is None and most is None:
            raise CannotRecord("`clamp` without bounds has no kernel")

    def _cat(self, output: Tensor, tensors: Sequence[Tensor], axis: int = 0) -> None:
        start = 0
        for tensor in tensors:
            self._map("copy", output.narrow(axis, start, tensor.shape[axis]), tensor)
            start += tensor.shape[axis]

    def _stack(self, output: Tensor, tensors: Sequence[Tensor], axis: int = 0) -> None:
        for index, tensor in enumerate(tensors):
            self._map("copy", output.select(axis, index), tensor)

    def _index_copy(self, output: Tensor, to: Tensor, axis: int, index: Tensor, source: Tensor) -> None:
        if index.numel() != 1:
            raise CannotRecord("`index_copy_` to several positions has no kernel")
        self.caches.add(_storage(output))
        step = output.stride(axis) * output.element_size()
        self._map("copy", output.narrow(axis, 0, 1), source, at=(index, step, output.shape[axis]))

    def _reduce(self, name: str, output: Tensor, x: Tensor, axes: Any, keep: bool) -> None:
        axes = [axes] if isinstance(axes, int) else list(axes or range(x.dim()))
        if len(axes) != 1:
            raise CannotRecord(f"`{name}` over several axes has no kernel")
        x = x.movedim(axes[0], -1)
        to = (output.movedim(axes[0], -1) if keep else output[..., None]).expand(x.shape)
        if x.dim() > PLAIN_AXES:
            raise CannotRecord(f"`{name}` of {x.dim()} axes has no kernel")
        missing = PLAIN_AXES - x.dim()
        strides = [(0,) * missing + _bytes(tensor) for tensor in (to, x)]
        self._row("reduce", REDUCTIONS[name], (1,) * missing + tuple(x.shape), strides, [output, x])

    def _any(self, output: Tensor, x: Tensor, axes: Any = None, keepdim: bool = False) -> None:
        self._reduce("any", output, x, axes, keepdim)

    def _all(self, output: Tensor, x: Tensor, axes: Any = None, keepdim: bool = False) -> None:
        self._reduce("all", output, x, axes, keepdim)

    def _mean(self, output: Tensor, x: Tensor, axes: Any = None, keepdim: bool = False, **named: Any) -> None:
        self._reduce("mean", output, x, axes, keepdim)

    def _sum(self, output: Tensor, x: Tensor, axes: Any = None, keepdim: bool = False, **named: Any) -> None:
        self._reduce("sum", output, x, axes, keepdim)

    def _amax(self, output: Tensor, x: Tensor, axes: Any = None, keepdim: bool = False) -> None:
        self._reduce("amax", output, x, axes, keepdim)

    def _embedding(self, output: Tensor, table: Tensor, ids: Tensor, *unused: Any, **named: Any) -> None:
        self._take_rows(output, table, ids)

    def _index_select(self, output: Tensor, table: Tensor, axis: int, index: Tensor) -> None:
        if axis not in (0, 1) or (axis == 1 and len(table) > MAX_TABLES):
            raise CannotRecord("`index_select` along such an axis has no kernel")
        if axis == 0 and _storage(table) in self.caches and table.dtype == torch.float32:
            self.gathered[_storage(output)] = table, index, output
            return
        for one, other in zip(output.unbind(), table.unbind(), strict=True) if axis else ((output, table),):
            self._take_rows(one, other, index)

    def _take_rows(self, output: Tensor, table: Tensor, index: Tensor) -> None:
        row = table[0]
        if not (row.is_contiguous() and output.is_contiguous() and index.is_contiguous()):
            raise CannotRecord("rows of a table that are not contiguous have no kernel")
        stride = table.stride(0) * table.element_size()
        self._row("take_rows", 0, (index.numel(), row.numel() * row.element_size(), 0, 0), [(), (stride, 0, 0, 0)],
                  [output, table, index], count=len(table))  # fmt: skip

    def _native_layer_norm(
        self, output: Tensor, x: Tensor, shape: Sequence[int], weight: Tensor | None, bias: Tensor | None, epsilon: float
    ) -> None:
        if len(shape) != 1 or not x.is_contiguous() or x.dtype != torch.float32:
            raise CannotRecord("a layer norm over several axes has no kernel")
        self._row("layer_norm", 0, (x.numel() // shape[0], shape[0], 0, 0), [], [output, x, weight, bias], x=epsilon)

    def _addmm(self, output: Tensor, bias: Tensor | None, x: Tensor, weight: Tensor, **named: Any) -> None:
        if _storage(x) in self.constant:
            output, x, weight = output.t(), weight.t(), x.t()
            bias = None if bias is None else bias[:, 0]
        (rows, inner), outer = x.shape, weight.shape[1]
        constant = _storage(weight) in self.constant and (bias is None or _storage(bias) in self.constant)
        if named or not constant or x.dtype != torch.float32 or x.stride(1) != 1 or (bias is not None and bias.dim() != 1):
            raise CannotRecord("a product with another right side than a weight has no kernel")
        panels = self._packed(weight).panels
        contiguous = None if bias is None else bias.contiguous()
        self._row("product", 0, (rows, x.stride(0), inner, outer), [], [output, x, panels, contiguous])

    def _packed(self, weight: Tensor) -> Packed:
        """The packed copy of a weight (in, out)."""
        if _storage(weight) not in self.weights:
            raise CannotRecord("a product with a weight that is computed in every step has no kernel")
        parts = self.copies.setdefault(self.weights[_storage(weight)], {})
        place = (weight.data_ptr(), *weight.shape, *weight.stride())
        if place not in parts:
            parts[place] = pack(self.avx512, weight.t())
        packed: Packed = parts[place]
        return packed

    def _mm(self, output: Tensor, x: Tensor, weight: Tensor) -> None:
        self._addmm(output, None, x, weight)

    def int8_product(self, variant: int, x: Tensor, y: Tensor, packed: int8.Packed, bias: Tensor | None) -> None:
        """A product with a weight in int8, which the caller has computed."""
        self.constant.discard(_storage(y))
        self._row("int8_product", variant, (len(x), x.stride(0), packed.inner, packed.outer), [], [y, x, packed.panels, bias],
                  more=(packed.scales, packed.starts), types=())  # fmt: skip

    def refine(self, logits: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None, count: int) -> None:
        """The largest logits of each row once more in float32."""
        contiguous = x.is_contiguous() and weight.is_contiguous() and (bias is None or bias.is_contiguous())
        if not contiguous or weight.dtype != torch.float32 or _storage(weight) not in self.weights:
            raise CannotRecord("a head of such a weight has no kernel")
        self._row("refine", 0, (*logits.shape, weight.shape[1], count), [], [logits, x, weight, bias])

    def listed(self, x: Tensor, lists: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """The logits of the ids in lists."""
        contiguous = all(tensor is None or tensor.is_contiguous() for tensor in (x, lists, weight, bias))
        if not contiguous or weight.dtype != torch.float32 or _storage(weight) not in self.weights:
            raise CannotRecord("a head of such a weight has no kernel")
        with _disable_current_modes():
            logits = x.new_zeros(len(x), lists.shape[1])  # only its memory counts: what is computed in a recording is not read
        self._note_memory(logits)
        self._gather({_storage(x)})
        self._row("listed", 0, (*logits.shape, weight.shape[1], len(x) // len(lists)), [], [logits, x, weight, bias], types=(),
                  count=len(weight), more=(lists,))  # fmt: skip
        return logits

    def prepare(self, mask: Mask, bias: Bias | None, shapes: Shapes, options: SimdOptions) -> Prepared:
        """The keys that rows see, once for all layers of a stack."""
        return Prepared(self._live_keys(mask, bias, shapes), with_bias=bias is not None)

    def attend(self, inputs: AttentionInputs, options: SimdOptions) -> AttentionOutput:
        """Attention as one operation. All queries of a row see the same keys."""
        try:
            check(inputs)
        except BackendRefused as reason:
            raise CannotRecord(str(reason)) from None
        query, key, value, prepared = inputs.query, inputs.key, inputs.value, inputs.prepared
        (B, H, Q, D), (G, K) = query.shape, key.shape[1:3]
        sized = value.shape[3] == D and SIMD.capabilities.head_dim is not None and D in SIMD.capabilities.head_dim
        if not sized or inputs.dropout or any(tensor.stride(3) != 1 for tensor in (query, key, value)):
            raise CannotRecord("attention with dropout, or of such head dims, has no kernel")
        if prepared is not None and (prepared.with_bias or inputs.bias is None):
            index, counts, added = prepared.payload
        else:
            index, counts, added = self._live_keys(inputs.mask, inputs.bias, shapes_of(inputs))
        with _disable_current_modes():
            output = in_torch(inputs).output.transpose(1, 2).contiguous().transpose(1, 2)  # as the kernel writes it
        self._note_memory(output)
        strides = [(), *(tensor.stride() for tensor in (query, key, value))]
        held = [self.gathered.get(_storage(tensor)) for tensor in (key, value)]
        if all(_lie_in(rows, held[0], tensor) for rows, tensor in zip(held, (key, value), strict=True)):
            [(key, slots, _), (value, _, _)] = held
            index, counts = self._slots(slots, index, counts)
            strides[2:] = [(0, *stride[1:]) for stride in strides[2:]]
        self._gather({_storage(key), _storage(value)})
        self._row("attend", 0, (B, H, G, K), strides, [output, query, key, value], x=inputs.scale,
                  types=(D, len(index) > 1, added is not None and len(added) > 1, Q), more=(index, counts, added))  # fmt: skip
        return AttentionOutput(output)

    def _gather(self, places: set[int], written: bool = False) -> None:
        """Copy the rows of caches in this memory. With `written`, this memory changes: the rows of caches in it, too."""
        for place, (table, index, rows) in list(self.gathered.items()):
            if place in places or (written and {_storage(table), _storage(index)} & places):
                del self.gathered[place]
                self._take_rows(rows, table, index)

    def _slots(self, slots: Tensor, index: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
        """Where the live keys of each row lie (B,K), and their numbers (B,)."""
        key = slots.data_ptr(), index.data_ptr()
        if key not in self.slots:
            K = index.shape[1]
            B = slots.numel() // K
            with _disable_current_modes():
                live, live_counts = (torch.zeros(size, dtype=torch.int32, device="cpu") for size in ((B, K), (B,)))
            self._note_memory(live, live_counts)
            self._row("slots", 0, (B, len(index), K, 0), [], [live, index, slots], types=(), count=B * K,
                      more=(counts, live_counts))  # fmt: skip
            self.slots[key] = live, live_counts
        return self.slots[key]

    def _live_keys(self, mask: Mask, bias: Bias | None, shapes: Shapes) -> tuple[Tensor, Tensor, Tensor | None]:
        """The indices (R,K) of the keys that each row sees, their numbers (R,), and what is added to their scores (R,H,K)."""
        mask_tensor, added = visible(mask, shapes), None
        dense = None if bias is None else dense_bias(bias, mask.offset, shapes)
        tensors = [tensor for tensor in (mask_tensor, dense) if tensor is not None]
        R, H, K = max(map(len, tensors), default=1), shapes.heads, shapes.keys
        if any(tensor.shape[2] != 1 for tensor in tensors):
            raise CannotRecord("a mask of several queries has no kernel")
        with _disable_current_modes():
            index, counts = torch.zeros(R, K, dtype=torch.int32, device="cpu"), torch.zeros(R, dtype=torch.int32, device="cpu")
            if dense is not None or (mask_tensor is not None and mask_tensor.shape[1] > 1):
                added = torch.zeros(R, H, K, device="cpu")
        self._note_memory(*(tensor for tensor in (index, counts, added) if tensor is not None))
        heads = 1 if added is None else H
        strides = [(0,) * 4 if tensor is None else _bytes(tensor.expand(R, heads, 1, K)) for tensor in (mask_tensor, dense)]
        self._row("live_keys", 0, (R, heads, 1, K), [(), *strides], [index, mask_tensor, dense, added], place=counts.data_ptr(),
                  types=(0, 0, 0 if dense is None else _type(dense)))  # fmt: skip
        return index, counts, added

    def _row(
        self, code: str, function: int, sizes: Sequence[int], strides: Sequence[Sequence[int]],
        tensors: Sequence[Tensor | None], x: float = 0.0, place: int = 0, place_stride: int = 0, count: int = 0,
        types: Sequence[int] | None = None, more: Sequence[Tensor | None] = (),
    ) -> None:  # fmt: skip
        self.kept += [tensor for tensor in (*tensors, *more) if tensor is not None]
        if types is None:
            types = [0 if tensor is None else _type(tensor) for tensor in tensors if code != "product"]
        axes = [number for part in _padded(strides, ()) for number in _padded(part, 0)]
        data = [0 if tensor is None else tensor.data_ptr() for tensor in _padded(tensors, None)]
        [bits] = struct.unpack("q", struct.pack("d", x))
        others = [0 if tensor is None else tensor.data_ptr() for tensor in _padded(more, None)[:3]]
        row = [CODES[code], function, *sizes, *axes, *map(int, _padded(types, 0)), *data]
        row += [bits, place, place_stride, count, *others]  # as in `struct operation` of ../source/kernels.h
        assert len(row) == WORDS
        self.table.append(row)


def _lie_in(held: tuple[Tensor, Tensor, Tensor] | None, first: tuple[Tensor, Tensor, Tensor] | None, rows: Tensor) -> bool:
    """Whether rows of keys (B,G,K,D) are what the slots of the first cache hold of this one, all of it and in its order."""
    if held is None or first is None:
        return False
    (table, slots, _), steps = held, rows.stride()
    whole = rows.storage_offset() == 0 and steps[0] == len(table) // len(rows) * steps[2] and steps[2] == table[0].numel()
    return whole and table.is_contiguous() and slots.numel() == len(table) and slots.data_ptr() == first[1].data_ptr()


def _tensors_in(values: Iterable[Any]) -> Iterator[Tensor]:
    """The tensors among the arguments or results of an operation, and in lists and tuples of them."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors_in(value)


def _padded(values: Iterable[Any], rest: Any) -> list[Any]:
    """Four values."""
    values = list(values)
    return [*values, *[rest] * (PLAIN_AXES - len(values))]


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _type(tensor: Tensor) -> int:
    if tensor.dtype not in TYPES:
        raise CannotRecord(f"tensors of {str(tensor.dtype).removeprefix('torch.')} have no kernels")
    return TYPES[tensor.dtype]


def _bytes(tensor: Tensor) -> tuple[int, ...]:
    return tuple(stride * tensor.element_size() for stride in tensor.stride())


def _broadcast(tensor: Tensor, shape: Sequence[int]) -> tuple[int, ...]:
    return _bytes(tensor.expand(shape))


def _merged(strides: list[tuple[int, ...]], shape: Sequence[int]) -> tuple[list[int], list[list[int]]]:
    """The sizes and strides of at most four axes: neighbours that all tensors step through as one become one."""
    sizes: list[int] = []
    steps: list[list[int]] = [[] for _ in strides]
    for axis, size in enumerate(shape):
        if size == 1:
            continue
        here = [stride[axis] for stride in strides]
        if sizes and all(step[-1] == size * stride for step, stride in zip(steps, here, strict=True)):
            sizes[-1] *= size
            for step, stride in zip(steps, here, strict=True):
                step[-1] = stride
            continue
        sizes.append(size)
        for step, stride in zip(steps, here, strict=True):
            step.append(stride)
    missing = PLAIN_AXES - len(sizes)
    if missing < 0:
        raise CannotRecord(f"an operation on {len(sizes)} axes that are not contiguous has no kernel")
    return [1] * missing + sizes, [[0] * missing + step for step in steps]


beams_avx2, beams_avx512 = partial(beams, False), partial(beams, True)
greedy_avx2, greedy_avx512 = partial(greedy, False), partial(greedy, True)
record_avx2, record_avx512 = partial(record, False), partial(record, True)
