"""How far apart two correct evaluations of a whole model may be.

A worst-case bound for a whole model grows exponentially with its depth and says nothing. The yardstick is measured instead, in
the same run: E_d = max |eager_d - exact| / max |exact| for every node, where eager_d is the model in dtype d with the eager
backend and `exact` the same weights widened to float64. Two evaluations in dtype d (another backend, other chunks of decoding,
another batch) agree when

    max |a - b|  <=  FACTOR max(E_d, 4 u_d, sqrt(n / 6) u_s) max |exact|                FACTOR = 8

and float64, for which nothing wider can be run, takes E_64 = E_32 u_64 / u_32: rounding errors are of first order in u
(Higham, Accuracy and Stability of Numerical Algorithms, 2002, section 1.9). The factor is no derived number. It covers that E_d
is one sample of the errors that rounding may make and a - b the difference of two others.

The last term is there because E_d is measured with one order of summing, and another kernel, another dtype or another number of
rows has another. Let y = p_1 + ... + p_n be summed one product after the other, which is the worst order in use, with partial
sums S_k and |d_k| <= u_s the rounding error of step k, u_s that of the dtype that sums (float32 for the half dtypes):

    error of y = sum_k d_k S_k,    d_k independent, of mean 0 and variance u_s^2 / 3          (Higham & Mary 2019, section 2)
    p_k of either sign, deviation s:  rms S_k = s sqrt(k),  rms error = u_s s sqrt(sum k / 3) = u_s s n / sqrt(6)
                                      rms y = s sqrt(n),    rms error / rms y = sqrt(n / 6) u_s
    p_k of one sign, size s:          S_k = k s,            rms error / y = sqrt(sum k^2 / 3) u_s / n = sqrt(n) / 3 u_s, less

A kernel that keeps m partial sums has sqrt(m) times less, so m lanes of float32 may show some u where a row of float64 shows
sqrt(n / 6). n is the longest sum before a node: the inputs of a linear map or the keys of an attention. It is not multiplied by
the depth: branches of relative error e, independent and of equal size, add up to a residual stream of relative error e as well.
Up to n = 96 the term is below 4. In float64 these limits cost nothing: the
mutants move outputs by 1e4 times the limit and more. So properties that hold up to rounding are decided in float64,
whatever the dtype; in the dtype they show what its rounding allows to be seen. Properties that are exact are compared to the
bit in every dtype and need none of this.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from tfkit import Model

from ..attention.bound import UNIT
from ..site_hooks import request_backend
from .batch import Batch
from .comparison import close
from .expected import node_of
from .recording import run

FACTOR = 8.0
LARGEST = 0.25
"""A yardstick above this share of the outputs shows nothing any more."""


@dataclass(frozen=True)
class Yardstick:
    """By node the relative error `error` of the eager backend in a dtype, the size of the exact output, and how many `terms`
    the longest sum has that it is computed from."""

    error: dict[str, float]
    size: dict[str, float]
    terms: dict[str, int]
    dtype: torch.dtype

    def tolerance(self, node: str) -> float:
        """The most by which two correct evaluations of a node may be apart, absolutely."""
        sums = math.sqrt(self.terms[node] / 6) * UNIT[torch.promote_types(self.dtype, torch.float32)]
        return FACTOR * max(self.error[node], 4.0 * UNIT[self.dtype], sums) * self.size[node]

    def blunt(self) -> bool:
        """Whether rounding in this dtype alone may change the outputs so much that no error could be distinguished from it."""
        return FACTOR * max(self.error.values()) > LARGEST

    def at(self, dtype: torch.dtype) -> Yardstick:
        """The same for another dtype, by the ratio of the unit roundoffs."""
        ratio = UNIT[dtype] / UNIT[self.dtype]
        return Yardstick({name: error * ratio for name, error in self.error.items()}, self.size, self.terms, dtype)


def yardstick(model: Model, wide: Model, batch: Batch) -> tuple[Yardstick, dict[str, Tensor]]:
    """The yardstick of a model in its dtype, and the outputs of every node of the same in float64, both under eager."""
    exact, got = run(wide, batch), run(model, batch)
    size = {name: float(tensor.abs().max()) for name, tensor in exact.items()}
    error = {name: float((got[name].double() - exact[name]).abs().max()) / (size[name] or 1.0) for name in exact}
    keys = max((tensor.shape[1] for tensor in exact.values() if tensor.dim() == 3), default=1)
    return Yardstick(error, size, longest_sums(model, keys), next(model.parameters()).dtype), exact


def longest_sums(model: Model, keys: int) -> dict[str, int]:
    """By node, the number of terms of the longest sum on the way to its output, where attention is over `keys` positions."""
    found: dict[str, int] = {}
    for name, wire in model.plan.wires.items():
        own = [weight[0].numel() for weight in model.nodes[name].parameters() if weight.dim() > 1]
        read = [found[reference.split(".")[0]] for reference in (*wire.edges.values(), *wire.memories)]
        shared = [found[wire.owner]] if wire.owner is not None else []
        found[name] = max((keys, *own, *read, *shared))
    return found | {output: found[node_of(output)] for output in model.plan.outputs}


def cast(model: Model, dtype: torch.dtype, backend: object = "eager") -> Model:
    """A copy of a model in another dtype, with one backend at all sites."""
    made = copied(model).to(dtype)
    device = next(made.parameters()).device
    request_backend(made, "eager")  # it serves every dtype, so that no other backend refuses on the way
    made.retarget(device, dtype)
    if backend != "eager":
        request_backend(made, backend)
    return made.eval()


def copied(model: Model) -> Model:
    """A copy of a model that shares what is never changed: its spec, and the backends to choose from."""
    shared = [model.spec, *(c for a, i, _ in model.attention_sites() for c in (a.choices[i].candidates, a.choices[i].others))]
    return copy.deepcopy(model, {id(thing): thing for thing in shared})


def agree(
    check: str,
    got: dict[str, Tensor],
    want: dict[str, Tensor],
    stick: Yardstick,
    words: str,
    shown: dict[str, Tensor] | None = None,
) -> float:
    """The largest difference over its tolerance among the nodes that both have, in the order of the graph. Raises Violation."""
    worst = 0.0
    for name in want:
        if name in got:
            where = None if shown is None else shown.get(name)
            worst = max(worst, close(check, got[name], want[name], stick.tolerance(name), words, f"`{name}`", where))
    return worst
