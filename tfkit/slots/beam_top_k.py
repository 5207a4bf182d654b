"""Beam top-k: the step of a search that selects the best continuations, for float32 logits on a CPU."""

from __future__ import annotations

from dataclasses import dataclass

from .options import Entry


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
