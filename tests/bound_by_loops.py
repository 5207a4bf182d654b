"""`tfkit_conformance.attention.bound` number by number: its docstring's formulas in plain loops, sharing no line with it."""

from __future__ import annotations

from itertools import product
from math import ceil, expm1, inf

import torch

from tfkit.plugin import DenseBias, DistanceBias, LinearBias

UNITS = {"float64": 2**-53, "float32": 2**-24, "bfloat16": 2**-8, "float16": 2**-11}
TINY = {"float64": 2**-1022, "float32": 2**-126, "bfloat16": 2**-126, "float16": 2**-25 + 2**-126}
RANGE = {"float64": 2.0**1023 * 1.99, "float32": 2.0**127 * 1.99, "bfloat16": 2.0**127 * 1.99, "float16": 65504.0}


def by_loops(found, numerics, tf32=False):
    """Output, weights, lse, compared rows and the gradients by name, as nested loops fill them."""
    x = found.inputs
    B, H, Q, D = found.query.shape
    K, V = found.value.shape[2:]
    G = x.key.shape[1]
    name = str(x.query.dtype).removeprefix("torch.")
    half = name in ("bfloat16", "float16")
    u_o, u_a, eta = UNITS[name], UNITS["float64" if name == "float64" else "float32"], TINY[name]
    u_m = 2**-11 if tf32 and numerics.tf32 and name == "float32" else 0
    u_p = u_o if half and numerics.probabilities == "storage" else 0
    u_s = u_o if half and numerics.scores == "storage" else 0
    u_q = u_o if half and numerics.query_prescaled else 0
    stored = u_o if half and numerics.gradients == "storage" else 0
    blocks, scale, c = ceil(K / 16), abs(x.scale), x.softcap
    q, k, v, dO, out = (t.tolist() for t in (found.query, found.key, found.value, found.grad_output, found.output))
    R, C, S, P, Z = (t.tolist() for t in (found.raw, found.capped, found.scores, found.weights, found.drawn))
    dP, rows, dS, dR = (t.tolist() for t in (found.grad_weights, found.row_sums, found.grad_scores, found.grad_raw))
    L, seen, bias = found.lse.tolist(), found.visible.tolist(), None if found.bias is None else found.bias.tolist()
    dropped = 3 * u_a if any(z != 1 for z in found.drawn.flatten().tolist()) else 0

    def gamma(n):
        return n * u_a / (1 - n * u_a)

    n = gamma(K + blocks + 2)
    T_O, T_P, T_L = torch.zeros(B, H, Q, V), torch.zeros(B, H, Q, K), torch.zeros(B, H, Q)
    T_O, T_P, T_L = T_O.double(), T_P.double(), T_L.double()
    compared = torch.zeros(B, H, Q, dtype=torch.bool)
    dq, dk, dv = (torch.zeros(t.shape, dtype=torch.float64) for t in (found.query, found.key, found.value))
    products_k, products_v = torch.zeros_like(dk), torch.zeros_like(dv)
    pulled = torch.zeros(B, H, Q, K, dtype=torch.float64)
    for b, h, i in product(range(B), range(H), range(Q)):
        keys = [j for j in range(K) if seen[b][h][i][j]]
        lse = 0 if L[b][h][i] == -inf else L[b][h][i]
        top = max((S[b][h][i][j] for j in keys), default=0)
        E_C, e = [0.0] * K, [0.0] * K
        for j in range(K):
            magnitude = scale * sum(abs(q[b][h][i][d] * k[b][h][j][d]) for d in range(D))
            r, s, capped = abs(R[b][h][i][j]), abs(S[b][h][i][j]), abs(C[b][h][i][j])
            E_C[j] = (gamma(D + 2) + 2 * u_m + u_q) * magnitude + 3 * u_a * r + u_s * (3 * r + 2)
            if u_q:
                E_C[j] += eta * sum(abs(k[b][h][j][d]) for d in range(D))
            if c is not None:
                E_C[j] += u_a * (2 * r + 4 * capped) + 2 * u_s * capped
            below = max(0, top - S[b][h][i][j])
            E = E_C[j] + u_a * (3 * s + 6 + 5 * blocks + 4 * below + 2 * abs(lse) + 2 * abs(top))
            if bias is not None:
                E += 3 * u_a * abs(bias[b][h][i][j]) + u_s * s
            e[j] = expm1(min(E, 50)) if seen[b][h][i][j] else 0
        p, z, g = P[b][h][i], Z[b][h][i], dP[b][h][i]
        Pe = sum(p[j] * e[j] for j in range(K))
        kept = [0.0]
        if numerics.scores == "storage":
            kept += [abs(t) for row in (R, S, dP) for t in row[b][h][i]]
            kept += [abs(t) * max(1, abs(c or 1)) for t in dS[b][h][i]]
        if "storage" in (numerics.scores, numerics.probabilities):
            kept += [abs(t) for t in dR[b][h][i]]
        compared[b, h, i] = 1 - Pe > 0.25 and max(kept) <= RANGE[name]
        den = max(1 - Pe, 0.25)
        T_L[b, h, i] = Pe / den + 2**-24 * 4 * (abs(lse) + abs(top) + 1) + n
        for w in range(V):
            o = abs(out[b][h][i][w])
            moved = sum(p[j] * e[j] * abs(z[j] * v[b][h][j][w] - out[b][h][i][w]) for j in range(K)) / den
            size = sum(p[j] * z[j] * abs(v[b][h][j][w]) for j in range(K))
            under = eta * (sum(z[j] * abs(v[b][h][j][w]) for j in keys) + 1)
            T = moved + (u_p + 2 * u_m + dropped) * size + n * (size + o) + (4 + 2 * abs(lse)) * u_a * o + under
            T_O[b, h, i, w] = 1.02 * T + 1.01 * u_o * o
        e_P = [(e[j] + Pe) / den + n for j in range(K)]
        for j in range(K):
            T_P[b, h, i, j] = 1.02 * p[j] * e_P[j] + 2 * u_o * p[j] + (eta if seen[b][h][i][j] else 0)
        towards = [sum(abs(dO[b][h][i][w] * v[b][h][j][w]) for w in range(V)) for j in range(K)]
        E_dP = [(gamma(V + 2) + 2 * u_m + u_s + dropped) * z[j] * towards[j] + u_s * abs(g[j]) for j in range(K)]
        by_output = sum(abs(dO[b][h][i][w]) * T_O[b, h, i, w].item() for w in range(V))
        by_output += gamma(V + 2) * sum(abs(dO[b][h][i][w] * out[b][h][i][w]) for w in range(V))
        by_weights = sum(p[j] * (e_P[j] * abs(g[j]) + E_dP[j] + (n + 2 * u_m + u_s) * abs(g[j])) for j in range(K))
        E_D, row = max(by_output, by_weights), rows[b][h][i][0]
        for j in range(K):
            tiny = eta if seen[b][h][i][j] else 0
            apart = abs(g[j] - row)
            E_dS = p[j] * (e_P[j] * apart + E_dP[j] + E_D + 2 * (u_a + u_s) * (abs(g[j]) + abs(row)))
            if u_s:
                E_dS += 2 * tiny * (apart + 1)
            ds, dr, E_dR = abs(dS[b][h][i][j]), abs(dR[b][h][i][j]), E_dS
            if c is not None:
                t = C[b][h][i][j] / c
                E_dR = (E_dS + 3 * u_s * ds) * (1 - t * t) + ds * (2 * abs(t) * E_C[j] / abs(c) + 4 * u_a)
            pulled[b, h, i, j] = E_dS + tiny
            over_k = u_p + 2 * u_m + n + stored * ceil(K / 32)
            over_q = u_p + 2 * u_m + gamma(Q + blocks + 2) + stored * ceil(Q / 32)
            for d in range(D):
                dq[b, h, i, d] += scale * abs(k[b][h][j][d]) * (E_dR + tiny + over_k * dr)
                dk[b, h, j, d] += scale * abs(q[b][h][i][d]) * (E_dR + tiny + over_q * dr)
                products_k[b, h, j, d] += scale * dR[b][h][i][j] * q[b][h][i][d]
            for w in range(V):
                dv[b, h, j, w] += abs(dO[b][h][i][w]) * (p[j] * z[j] * (e_P[j] + over_q + dropped) + tiny)
                products_v[b, h, j, w] += p[j] * z[j] * dO[b][h][i][w]
    want = found.gradients
    partial = eta * max(1, scale) if stored else 0
    gradients = {"query": 1.02 * dq + 2 * u_o * want["query"].abs() + eta + partial * ceil(K / 32)}
    for leaf, bound, exact in (("key", dk, products_k), ("value", dv, products_v)):
        per_head = 1.02 * bound + (2 * u_o if G < H else u_o) * exact.abs() + (eta if G < H else 0) + partial * ceil(Q / 32)
        summed = sum(per_head.view(B, G, H // G, K, -1)[:, :, r] for r in range(H // G))
        gradients[leaf] = summed + u_o * want[leaf].abs() + eta
    if x.bias is not None:
        gradients["bias"] = _bias(found, pulled, stored, gamma, eta)
    return T_O, T_P, T_L, compared, gradients


def _bias(found, pulled, stored, gamma, eta):
    """What each pair may be off, brought to the bias's own tensor pair by pair."""
    x = found.inputs
    B, H, Q, K = pulled.shape
    own = x.bias.slopes if isinstance(x.bias, LinearBias) else x.bias.values
    name = str(own.dtype).removeprefix("torch.")
    sums = torch.zeros(own.shape, dtype=torch.float64)
    terms = B * Q * K if isinstance(x.bias, DistanceBias) else B * H * Q * K // own.numel()
    offset = x.mask.offset
    starts = offset.tolist() if isinstance(offset, torch.Tensor) else [offset or 0] * B
    for b, h, i, j in product(range(B), range(H), range(Q), range(K)):
        ds = abs(found.grad_scores[b, h, i, j].item())
        pair = pulled[b, h, i, j].item() + (2 * stored + gamma(terms)) * ds
        away = j - starts[b] - i
        if isinstance(x.bias, LinearBias):
            sums[h] += abs(away) * pair
        elif isinstance(x.bias, DistanceBias):
            sums[h, min(max(away - x.bias.low, 0), own.shape[1] - 1)] += pair + UNITS[name] * ds
        else:
            assert isinstance(x.bias, DenseBias)
            place = (b, h, i, j)[4 - own.dim() :]
            sums[tuple(at if size > 1 else 0 for at, size in zip(place, own.shape, strict=True))] += pair
    return 1.02 * sums + 2 * UNITS[name] * found.gradients["bias"].abs() + eta + TINY[name]
