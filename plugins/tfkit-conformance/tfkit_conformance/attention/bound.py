"""The error bound of a correct backend: the componentwise worst case, computed from the float64 reference.

Notation of `reference`; u_a is the unit roundoff of the accumulation type, u_o of the storage type, gamma(n) = n u_a / (1 -
n u_a) (Higham, Accuracy and Stability of Numerical Algorithms, 2002, section 3.1), u_m = 2^-11 where products are TF32, else 0,
u_p that of the probabilities, n_b the number of key blocks. A relative error e_ij of exp(S_ij) moves the softmax by

    E_ij  = (gamma(D+2) + 2 u_m) scale sum|q||k|  +  u_a (3|R| + 3|bias| + 3|S| + 6 + 5 n_b + 4 (max S - S) + 2|lse| + 2|max S|)
            [scores rounded to storage: + u_o (3|R| + 2 + 2|C|)]   [softcap: + u_a (2|R| + 4|C|)]
            [scale q rounded to storage: + u_o scale sum|q||k| + eta sum|k|]                                 e = exp(E) - 1
    T_O   = sum_j P e |Z v_j - O| / den + (u_p + 2 u_m) sum P Z|v| + gamma(K + n_b + 2) (sum P Z|v| + |O|)
            + u_a (4 + 2|lse|)|O| + u_o|O|        2|lse|: a kernel may divide by exp(lse), with lse rounded
            den_i = 1 - sum_j P e; below 1/4 the row is too ill-conditioned to check   [dropout: + 3 u_a sum P Z|v|]
    E_dP  = (gamma(V+2) + 2 u_m) Z |dO| . |v|
    E_D   = the larger of  sum|dO| T_O + gamma(V+2) |dO| . |O|  and  sum_j (e' P |dP| + P E_dP + gamma(K) P |dP|)
    E_dS  = e' P |dP - D| + P (E_dP + E_D) + 2 u_a P (|dP| + |D|)        e' = (e + sum_j P e) / den + gamma(K + n_b + 2)
    E_dR  = (E_dS [scores rounded to storage: + 3 u_o|dS|]) (1 - (C/c)^2) + |dS| (2|C/c| E_C / c + 4 u_a)
    T_dq  = scale (E_dR |k| + (u_p + 2 u_m + gamma(K)) |dR||k|) + 2 u_o |dq|      dk, dv, dbias: linear in dR, P Z, dS alike
            [gradients rounded to storage: + u_o n_k scale |dR||k| + eta n_k max(1, scale)     n_k = ceil(K / 32) partial sums]

all times 1.02 for second-order terms, plus underflow. The composition follows the softmax analysis of Blanchard, Higham and
Higham (https://doi.org/10.1093/imanum/draa038). It is a worst case on purpose: on some inputs correct kernels come within 5 %
of it, and a probabilistic bound with sqrt(n) would raise false alarms.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from tfkit.plugin import DistanceBias, LinearBias, Numerics

from ..differences import error_ratio, worst_of
from .reference import Reference, bias_gradient, sum_groups

UNIT = {torch.float64: 2.0**-53, torch.float32: 2.0**-24, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}
SMALLEST = {torch.float64: 2.0**-1022, torch.float32: 2.0**-126, torch.bfloat16: 2.0**-126, torch.float16: 2.0**-25 + 2.0**-126}
SMALLEST_BLOCK = 16
SECOND_ORDER = 1.02
AT_ONCE = 2**18
"""Numbers of a temporary tensor: few enough for the cache of a core."""


@dataclass(frozen=True)
class Bounds:
    """The largest error that a correct backend can have, element by element.

    Args:
        output: (B,H,Q,V)
        weights: (B,H,Q,K)
        lse: (B,H,Q)
        evaluated: (B,H,Q) bool. False if the scores of the row overflow the storage type: no bound holds for the row then.
        of_gradients: computes `gradients`.
    """

    output: Tensor
    weights: Tensor
    lse: Tensor
    evaluated: Tensor
    of_gradients: Callable[[], dict[str, Tensor]]

    @cached_property
    def gradients(self) -> dict[str, Tensor]:
        """By "query", "key", "value" and, if there is a bias, "bias"; in the shapes of the inputs. Computed when first read."""
        return self.of_gradients()


def bounds(exact: Reference, numerics: Numerics, tf32: bool = False) -> Bounds:
    """The largest error that a correct backend of a numerics class can have on a call.

    Args:
        exact: the reference of the call.
        numerics: where the backend rounds.
        tf32: float32 products may be TF32.

    Returns:
        Bounds for output, weights, log-sum-exp and gradients, element by element.

    Reference:
        The equations above; Higham 2002, section 3.1; Blanchard, Higham and Higham (https://doi.org/10.1093/imanum/draa038).
    """
    inputs, dtype = exact.inputs, exact.inputs.query.dtype
    B, H, Q, D = exact.query.shape
    K, V = exact.value.shape[2:]
    G, scale, blocks = inputs.key.shape[1], abs(inputs.scale), math.ceil(K / SMALLEST_BLOCK)
    half = dtype in (torch.bfloat16, torch.float16)
    u_o, u_a = UNIT[dtype], UNIT[torch.promote_types(dtype, torch.float32)]
    u_m = 2.0**-11 if numerics.tf32 and tf32 and dtype == torch.float32 else 0.0
    u_p = u_o if half and numerics.probabilities == "storage" else 0.0
    u_s = u_o if half and numerics.scores == "storage" else 0.0
    u_q = u_o if half and numerics.query_prescaled else 0.0
    eta = SMALLEST[dtype]

    def seen(tensor: Tensor) -> Tensor:
        return torch.where(exact.visible, tensor, 0.0)

    query, key, value, grad_output = (t.abs() for t in (exact.query, exact.key, exact.value, exact.grad_output))
    P, Z, output = exact.weights, exact.drawn, exact.output
    PZ, visible = P * Z, exact.visible.double()
    n = gamma(K + blocks + 2, u_a)

    # ---- the scores, and with them the weights
    raw, scores = exact.raw.abs(), exact.scores.abs()
    lse = torch.where(exact.lse.isinf(), 0.0, exact.lse)[..., None]
    highest = torch.where(
        exact.lse.isinf()[..., None], 0.0, exact.scores.masked_fill(~exact.visible, -math.inf).amax(-1, keepdim=True)
    )
    E_capped = (gamma(D + 2, u_a) + 2 * u_m + u_q) * scale * (query @ key.mT) + 3 * u_a * raw + 3 * u_s * raw + 2 * u_s
    if u_q:
        E_capped = E_capped + eta * key.sum(-1)[:, :, None]  # a scaled query may be subnormal: in float16 soon
    if inputs.softcap is not None:
        E_capped = E_capped + u_a * (2 * raw + 4 * exact.capped.abs()) + 2 * u_s * exact.capped.abs()
    E = E_capped + u_a * (
        3 * scores + 6 + 5 * blocks + 4 * (highest - exact.scores).clamp(min=0) + 2 * lse.abs() + 2 * highest.abs()
    )
    if exact.bias is not None:
        E = E + 3 * u_a * exact.bias.abs() + u_s * scores
    e = seen(torch.expm1(E.clamp(max=50.0)))
    den = 1.0 - (P * e).sum(-1, keepdim=True)
    evaluated = den > 0.25
    den = den.clamp(min=0.25)

    # ---- output
    magnitude = PZ @ value
    moved = _moved(P * e / den, exact)
    dropped = 0.0 if bool((Z == 1).all()) else 3 * u_a
    T_O = (
        moved
        + (u_p + 2 * u_m + dropped) * magnitude
        + n * (magnitude + output.abs())
        + u_a * (4 + 2 * lse.abs()) * output.abs()
        + eta * ((visible * Z) @ value + 1)
    )
    T_O = SECOND_ORDER * T_O + 1.01 * u_o * output.abs()

    e_P = (e + (P * e).sum(-1, keepdim=True)) / den + n

    def of_gradients() -> dict[str, Tensor]:
        # ---- weights' gradient, then the scores'
        dP, row_sums, dS, dR = exact.grad_weights, exact.row_sums, exact.grad_scores, exact.grad_raw
        E_dP = (gamma(V + 2, u_a) + 2 * u_m + u_s + dropped) * Z * (grad_output @ value.mT) + u_s * dP.abs()
        from_output = (grad_output * (T_O + gamma(V + 2, u_a) * output.abs())).sum(-1, keepdim=True)
        from_weights = (P * (e_P * dP.abs() + E_dP + (n + 2 * u_m + u_s) * dP.abs())).sum(-1, keepdim=True)
        E_D = torch.maximum(from_output, from_weights)
        E_dS = P * (e_P * (dP - row_sums).abs() + E_dP + E_D + 2 * (u_a + u_s) * (dP.abs() + row_sums.abs()))
        E_dS = E_dS + (2 * eta * ((dP - row_sums).abs() + 1) * visible if u_s else 0.0)
        E_dR, tiny = E_dS, eta * visible
        if inputs.softcap is not None:
            t = exact.capped / inputs.softcap
            E_dR = (E_dS + 3 * u_s * dS.abs()) * (1 - t**2) + dS.abs() * (
                2 * t.abs() * E_capped / abs(inputs.softcap) + 4 * u_a
            )

        # ---- what is linear in them: a product adds its own rounding, and partial sums are rounded where the class says so
        stored = u_o if half and numerics.gradients == "storage" else 0.0
        over_keys = u_p + 2 * u_m + n + stored * math.ceil(K / 32)
        over_queries = u_p + 2 * u_m + gamma(Q + blocks + 2, u_a) + stored * math.ceil(Q / 32)
        dv = (PZ * e_P + tiny).mT @ grad_output + (over_queries + dropped) * (PZ.mT @ grad_output)
        dk = scale * ((E_dR + tiny).mT @ query + over_queries * (dR.abs().mT @ query))
        dq = scale * ((E_dR + tiny) @ key + over_keys * (dR.abs() @ key))
        per_head, lost = (2 * u_o, eta) if G < H else (u_o, 0.0)  # a gradient per head, rounded, then their sum, rounded
        rounded = eta * max(1.0, scale) if stored else 0.0  # each partial sum may be subnormal: in float16 soon
        lost_keys, lost_queries = rounded * math.ceil(K / 32), lost + rounded * math.ceil(Q / 32)
        dk_head, dv_head = scale * (dR.mT @ exact.query).abs(), (PZ.mT @ exact.grad_output).abs()
        want = exact.gradients
        gradients = {
            "query": SECOND_ORDER * dq + 2 * u_o * want["query"].abs() + eta + lost_keys,
            "key": sum_groups(SECOND_ORDER * dk + per_head * dk_head + lost_queries, G) + u_o * want["key"].abs() + eta,
            "value": sum_groups(SECOND_ORDER * dv + per_head * dv_head + lost_queries, G) + u_o * want["value"].abs() + eta,
        }
        if inputs.bias is not None:
            terms = B * Q * K if isinstance(inputs.bias, DistanceBias) else dS.numel() // want["bias"].numel()
            pulled = E_dS + (2 * stored + gamma(terms, u_a)) * dS.abs() + tiny
            sign = -1.0 if isinstance(inputs.bias, LinearBias) else 1.0
            kept = inputs.bias.slopes.dtype if isinstance(inputs.bias, LinearBias) else inputs.bias.values.dtype
            u_bias, smallest = UNIT[kept], SMALLEST[kept]
            if isinstance(inputs.bias, DistanceBias):
                pulled = pulled + u_bias * dS.abs()  # gathered in the bias's dtype, and so are the gradients of all pairs
            summed = sign * bias_gradient(inputs.bias, inputs.mask.offset, pulled)
            gradients["bias"] = SECOND_ORDER * summed + 2 * u_bias * want["bias"].abs() + eta + smallest
        return gradients

    evaluated = evaluated & (_largest(exact, numerics) <= torch.finfo(dtype).max)
    T_lse = (P * e).sum(-1) / den[..., 0] + UNIT[torch.float32] * 4 * (lse.abs() + highest.abs() + 1)[..., 0] + n
    T_P = SECOND_ORDER * P * e_P + 2 * u_o * P + eta * visible
    return Bounds(T_O, T_P, T_lse, evaluated[..., 0], of_gradients)


def gamma(terms: int, unit: float) -> float:
    """n u / (1 - n u), the bound of the relative error of n roundings (Higham 2002, section 3.1)."""
    return terms * unit / (1.0 - terms * unit)


def _largest(reference: Reference, numerics: Numerics) -> Tensor:
    """The largest intermediate value of each row (B,H,Q,1) that the numerics class keeps in the storage type.

    Beyond the range of that type a correct backend overflows, even if its results would fit."""
    kept = [torch.zeros_like(reference.raw)]
    if numerics.scores == "storage":
        kept += [
            reference.raw,
            reference.scores,
            reference.grad_weights,
            reference.grad_scores * max(1.0, abs(reference.inputs.softcap or 1.0)),
        ]
    if numerics.scores == "storage" or numerics.probabilities == "storage":
        kept.append(reference.grad_raw)
    return torch.stack([tensor.abs().amax(-1, keepdim=True) for tensor in kept]).amax(0)


def worst_ratio(got: Tensor, want: Tensor, bound: Tensor) -> float:
    """The largest |got - want| / bound. Above 1 is wrong; inf if `got` has a NaN or the wrong shape."""
    return worst_of(error_ratio(got, want, bound))[0] if got.shape == want.shape else math.inf


def _moved(share: Tensor, reference: Reference) -> Tensor:
    """sum_j share_ij |Z_ij v_j - O_i|: (B,H,Q,V), by groups of features that hold at most `AT_ONCE` numbers or one feature."""
    size = max(1, AT_ONCE // max(1, share.numel()))
    groups = zip(torch.split(reference.value, size, -1), torch.split(reference.output, size, -1), strict=True)
    return torch.cat([_moved_features(share, reference.drawn, v, o) for v, o in groups], -1)


def _moved_features(share: Tensor, drawn: Tensor, value: Tensor, output: Tensor) -> Tensor:
    """The same for all given features at once, without a loop over them."""
    apart = drawn[..., None, :] * value.mT[:, :, None]  # (B,H,Q,V,K)
    return apart.sub_(output[..., None]).abs_().mul_(share[..., None, :]).sum(-1)
