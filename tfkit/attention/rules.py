"""The rules A1 to A12 of the attention contract, which every backend must follow."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Rule:
    """One rule: its title and its text."""

    title: str
    text: str


RULES: dict[str, Rule] = {
    "A1": Rule(
        "heads, strides and memory",
        "Query head h reads key/value head h // (H // G). The output has the dtype and device of the query and is no view "
        "of an input. Inputs are never written to, nor is the gradient of the output; none is kept alive after a call. Any "
        "strides and integer dtypes are accepted. A call changes no setting of the process. B, Q and K are at least 1.",
    ),
    "A2": Rule(
        "the order of operations",
        "scores = scale * q.k, or the declared score function; softcap c: c * tanh(scores / c); + bias, which is never "
        "scaled; mask; softmax; dropout; times value. A query with a score of NaN or +inf, or that sees scores of -inf "
        "alone, has no softmax: it gets NaN, or zeros where the numerics class declares them, and never other numbers.",
    ),
    "A3": Rule(
        "a mask is data: rendered or refused",
        "A backend renders every term of a mask that it declares and refuses every other one. Nothing is ignored.",
    ),
    "A4": Rule(
        "positions decide which keys a query sees",
        "Query i of batch row b is at position offset[b] + i. Causal shows it the keys j <= offset + i; a window (l, r) shows "
        "offset + i - l <= j <= offset + i + r. The offset has no default.",
    ),
    "A5": Rule(
        "a query that sees no key",
        "Its output row is zero, its weights are zero, its log-sum-exp is -inf and its gradients are zero, whatever the "
        "gradient of the output; nowhere is there a NaN, forward or backward.",
    ),
    "A6": Rule(
        "hidden keys change nothing",
        "Values at keys that no query sees change nothing, bit for bit, as long as their products stay finite in the type "
        "of accumulation; their key and value gradients are exactly zero.",
    ),
    "A7": Rule(
        "dropout",
        "Dropout acts only when the call says so. Weights that stay are scaled by 1 / (1 - p). Randomness is torch's "
        "default generator of the device, drawn from once per call; the same state, dtype, mask and (B, H, Q, K, p) give "
        "the same draw whatever the values and strides, and forward, backward and recomputation use one draw. Draws of "
        "different backends may differ.",
    ),
    "A8": Rule(
        "where rounding happens",
        "Softmax and accumulation are in float32 at least, autocast or not. How gradients accumulate is declared in the "
        "numerics class. TF32 follows torch's own switch.",
    ),
    "A9": Rule(
        "weights on request",
        "Weights are (B, H, Q, K) in the query's dtype, after the softmax and before dropout, and declared as none, "
        "detached or differentiable. A request for them changes no bit of the output.",
    ),
    "A10": Rule(
        "gradients arrive or are refused",
        "Gradients reach the query, the key, the value and any bias that requires one. A backend that cannot compute a "
        "gradient raises an error; an output that silently lacks requires_grad is a failure. The backward may run twice, and "
        "other calls may come before it. Second derivatives raise an error unless they are declared.",
    ),
    "A11": Rule(
        "a requested backend is used or refused",
        "A refusal names every reason at once and the backends that would work. Only `auto` and a list of backends fall "
        "back. No environment variable and no process-wide switch changes the choice.",
    ),
    "A12": Rule(
        "names of weights",
        "Parameter names follow from the spec's structure, never from a backend: any checkpoint loads under any backend.",
    ),
}
