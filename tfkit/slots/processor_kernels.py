"""Kernels for decoding on a CPU: products of float32 and int8 weights, the selection of the best continuations, whole steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from .options import Entry

Tensor = Any
"""That of torch, which this package does not import: plans are made without it."""


@dataclass(frozen=True, kw_only=True)
class Float32Kernel(Entry):
    """One way to compute y = x W^T + b with a packed weight. `summary` names the library and the instructions.

    Searches use the fastest kernel that the processor has instructions for. `tfkit_conformance.check_product` has its laws.

    Args:
        needs: instruction sets, as `torch.cpu.get_capabilities` names them.
        pack: `"module:function"`, called as `pack(weight)` with a weight float32 (out, in); the result is in the layout of the
            kernel, and takes about the memory of the weight.
        multiply: `"module:function"`, called as `multiply(x, packed, bias)` with x float32 (N, in) and a bias float32 (out,) or
            None; returns y float32 (N, out). A row has the same bits alone and in a batch.
        relative_time: the time of a product relative to that of the core with packed weights, where that is fastest.
        fingerprints: `"module:function"`, called as `fingerprints(weights)` with a list of float32 weights of any shapes when a
            search begins; returns integers (len(weights), N), a row of which changes if one number of its weight changes, or if
            two change places. None for sums by operators of torch.
    """

    needs: tuple[str, ...]
    pack: str
    multiply: str
    relative_time: float
    fingerprints: str | None = None


@dataclass(frozen=True, kw_only=True)
class Int8Kernel(Entry):
    """One way to compute y = x W^T + b with a scale for each output channel of W and each row of x. `summary` names the library
    and the instructions.

    A model uses the fastest kernel that the processor has instructions for. `tfkit_conformance.check_product` has its laws.

    Args:
        needs: instruction sets, as `torch.cpu.get_capabilities` names them.
        levels: the largest integer of an activation, at most 127.
        pack: `"module:function"`, called as `pack(integers, scales)` with integers from -127 to 127, int8 (out, in), and the
            scales of the channels, float32 (out,); the result is in the layout of the kernel.
        multiply: `"module:function"`, called as `multiply(x, packed, bias)` with x float32 (N, in) and a bias float32 (out,) or
            None; returns y float32 (N, out). A row has the same bits alone and in a batch.
        relative_time: the time of a product relative to the built-in kernel `fbgemm_vnni`.
        min_elements: weights with fewer numbers stay float32, whose products are then faster.
    """

    needs: tuple[str, ...]
    levels: int
    pack: str
    multiply: str
    relative_time: float
    min_elements: int = 2**17


@dataclass(frozen=True, kw_only=True)
class BeamTopK(Entry):
    """One way to select the largest of total + log softmax(logits) over the beams of each sentence. `summary` names the
    instructions. `greedy` does the same for greedy decoding.

    A search uses the fastest one that the processor has instructions for.

    Args:
        needs: instruction sets, as `torch.cpu.get_capabilities` names them.
        select: `"module:function"`, called as `select(logits, totals, count)` with the logits (S * k, V) of k beams of each of
            S sentences, which it may overwrite, and the log-probabilities (S, k) of the beams, all float32. It returns three
            tensors (S, count): the largest values of totals[s, j] + log softmax(logits)[s * k + j, v] in descending order, of
            equal ones the lower index first; their indices j * V + v, int64; and log softmax(logits) there. Where there are
            fewer candidates, values are -inf. If a logit of a sentence is NaN or +inf, its first value is NaN. Results of a
            sentence do not depend on the others.
        relative_time: the time of `select` relative to operators of torch.
        greedy: `"module:function"`, called as `greedy(logits)` with float32 logits (R, V). It returns the indices (R,), int64,
            of the largest logit of each row, of equal ones the lowest, and in a row with NaN of the first NaN. None if greedy
            decoding uses operators of torch.
    """

    needs: tuple[str, ...]
    select: str
    relative_time: float
    greedy: str | None = None


@dataclass(frozen=True, kw_only=True)
class StepRecorder(Entry):
    """One way to run decoding steps in float32 without Python: it records the operations of a step, and runs them again on the
    same memory. `summary` names the instructions.

    Searches use the fastest one that the processor has instructions for, and ordinary steps where a step cannot be recorded.

    Args:
        needs: instruction sets, as `torch.cpu.get_capabilities` names them.
        record: `"module:function"`, called as `record(run, weights, copies)` with a step and the tensors that stay as they
            are. `run()` reads and writes the same tensors in every run. It returns a tensor or a tuple of tensors: all that
            are read after it. The result is a function that does what `run` does, and these tensors, which it writes.
            `copies` is a dictionary that the recordings of a model share: under each weight that is copied, the copy. It
            raises `CannotRecord` for a step that it cannot repeat; `recording_attention` and `recording_heads` bring
            attention and low-precision heads of the step to it.
        relative_time: the time of a step relative to the step of torch.
        greedy: `"module:function"`, called as `greedy(recorded, ids, place, logits, tokens, log_probs, limits, counts,
            finished, end_id, forbidden, length)` with a function that `record` returned; all rows have `length` tokens. For
            each step it writes the last token of each row b into ids (rows, 1), calls `recorded`, adds 1 to place (1,), and
            reads logits (rows, V), which it may change. Token t of row b, none of forbidden (F,), int64, and its
            log-probability among all are written to tokens (B, N), int64, and log_probs (B, N), float32, until b has `end_id`
            (None: no id ends a row) or limits (B,) tokens. Where b has `end_id`, finished (B,), bool, is set and counts (B,)
            becomes the number of its tokens. A row that is finished before is left as it is. Equal logits and NaN as in
            `BeamTopK.greedy`. It may end earlier, once at most half of the rows go on, and returns the number of tokens that
            these have: another recording with fewer rows then takes over. None if Python selects the tokens.
        beams: `"module:function"`, called as `beams(recorded, search)` with a `RecordedBeams`, which says what it does. None if
            Python searches.
    """

    needs: tuple[str, ...]
    record: str
    relative_time: float
    greedy: str | None = None
    beams: str | None = None


@dataclass(frozen=True, kw_only=True)
class RecordedBeams:
    """A beam search for S sentences with k live hypotheses each, which a `StepRecorder` continues until all are complete. It
    may end earlier, once at most half of them are left: another recording with fewer rows then goes on.

    A step sets `order` to the rows that the live hypotheses continue and `ids` to their last tokens (for the first step they
    are set), calls the function that `record` returned, adds 1 to `place`, and reads the logits of hypothesis j of sentence s
    in row s k + j. The candidates of a sentence are its best 2 k without forbidden tokens, in the order of `BeamTopK`; where
    there are fewer, forbidden ones with a total of -inf follow. Of the first k, those that end with `end_id`, and at the
    limit of the sentence all, are inserted into the finished hypotheses. The first k that do not end stay live; where there
    are fewer, others follow with a total of -inf.

    Attributes:
        ids, place, logits: The tensors of the recorded step, as in `StepRecorder.greedy`.
        order: (rows,) int64 of the recorded step, the row that each row continues.
        totals: (S, k) float32, log-probabilities of the live hypotheses.
        limits: (S,) int64, the most tokens of a sentence.
        penalties: (M + 1,) float32, the length penalty for 0..M tokens, M the largest limit. A score is a total divided by it.
            The live hypotheses have M - N tokens at first.
        max_penalties: (S,) float32, the penalty at the limit.
        forbidden: (F,) int64, ids that no hypothesis gets.
        end_id: The token that ends a hypothesis; None if none does.
        early_stopping: A sentence is complete at its limit, and once its last score (-inf where a hypothesis is missing) is:
            for "never" at least the largest total of a live hypothesis by `max_penalties`; for False above -inf and at least
            this total by the penalty now; for True above -inf. With one beam also once a hypothesis ended.
        ranked: Whether unfinished hypotheses are ranked with the finished ones. Otherwise they come last.
        rows, tokens: (N, S, k) int64, written for the live hypotheses by step: the row that they continue, and the token. Zeros
            stay where a sentence is complete.
        log_probs: (N, S, k) float32 of these tokens.
        finished: (S, n) of each: scores and totals, float32; lengths, int64; whether they ended, bool; rows and tokens, int64,
            and log-probabilities, float32, of their last tokens. Best first, of equal scores the one that came first.
        status: (S,) uint8, 0 at first. 1: complete. 2: the best total is NaN or infinite. 3: tokens are forbidden, no candidate
            is above -inf, and no hypothesis is finished. A search with a status of 2 or 3 ends at once.
    """

    ids: Tensor
    place: Tensor
    order: Tensor
    logits: Tensor
    totals: Tensor
    limits: Tensor
    penalties: Tensor
    max_penalties: Tensor
    forbidden: Tensor
    end_id: int | None
    early_stopping: bool | Literal["never"]
    ranked: bool
    rows: Tensor
    tokens: Tensor
    log_probs: Tensor
    finished: tuple[Tensor, ...]
    status: Tensor


class CannotRecord(Exception):
    """A step has an operation that a `StepRecorder` cannot repeat. The message is the reason."""
