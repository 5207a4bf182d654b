"""Reading a dropout draw out of a backend: with one-hot values the output is the kept weights themselves.

    O_ic = sum_j P_ij Z_ij V_jc = P_ij Z_ij        where V_jc = 1 for c = j - start, else 0        Z_ij in {0, 1/(1-p)}

By rule A7, one generator state, dtype and (B,H,Q,K,p) give one draw for any values. So calls with the same state and other
one-hot values read it key by key, V keys at a time, and queries of zero with a bias near zero keep every visible weight large.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor

from tfkit.plugin import AttentionInputs

from ..attention.backend_under_test import BackendUnderTest
from ..attention.compare import leaves_of
from ..attention.evaluated import Evaluated, run
from .paired_calls import leaf_copies

FLAT_BIAS = 2.0**-10
MAX_BITS = 6
"""Keys that one feature reads: their sum is far more exact than needed."""


@contextmanager
def own_generator(device: str, seed: int) -> Iterator[None]:
    """Seeded default generators, put back afterwards."""
    with torch.random.fork_rng(devices=[torch.device(device)] if device.startswith("cuda") else []):
        seed_generator(device, seed)
        yield


def seed_generator(device: str, seed: int) -> None:
    """Seeds the default generator. On a CPU that one alone: to seed those of devices that are not there takes as long as a
    small call."""
    if device == "cpu":
        torch.default_generator.manual_seed(seed)
    else:
        torch.manual_seed(seed)


def generator_state(device: str) -> Tensor:
    """The state of the device's default generator."""
    return torch.cuda.get_rng_state(device) if device.startswith("cuda") else torch.get_rng_state()


def set_generator_state(device: str, state: Tensor) -> None:
    """Put the device's default generator back to a state."""
    if device.startswith("cuda"):
        torch.cuda.set_rng_state(state, device)
    else:
        torch.set_rng_state(state)


def flat(inputs: AttentionInputs) -> AttentionInputs:
    """The call with all weights of a row nearly equal."""
    tensors = {"query": torch.zeros_like(inputs.query)}
    if inputs.bias is not None:
        tensors["bias"] = leaves_of(inputs)["bias"].detach() * FLAT_BIAS
    return leaf_copies(inputs, **tensors)


def kept_weights(subject: BackendUnderTest, inputs: AttentionInputs, backwards: bool = False) -> Tensor:
    """P Z (B,H,Q,K) of the call, float64, drawn from the generator's present state, to which the generator is put back before
    every call but the first. `backwards` gives the keys the value features from the last to the first."""
    keys, features = inputs.key.shape[2], inputs.value.shape[3]
    state = generator_state(subject.device)
    chunks = []
    for start in range(0, keys, features):
        set_generator_state(subject.device, state)
        value = torch.zeros_like(inputs.value, memory_format=torch.contiguous_format)
        chunk = torch.arange(start, min(start + features, keys), device=value.device)
        column = features - 1 - (chunk - start) if backwards else chunk - start
        value[:, :, chunk, column] = 1.0
        output = run(subject, leaf_copies(replace(inputs, value=_like(inputs.value, value))), "dropout").output.detach()
        chunks.append(output[..., column.to(output.device)].to("cpu", torch.float64))
    return torch.cat(chunks, -1)


def kept_pairs(subject: BackendUnderTest, inputs: AttentionInputs, some: Tensor | None = None) -> Tensor:
    """(B,H,Q,K) bool, True where a pair was kept, of a call without a mask; of `some` keys alone, if they are given. In a wide
    dtype one value feature reads several keys, as the bits of a number: V_jc = 2^b, so that K (1-p) O_ic is the number."""
    keys, features = inputs.value.shape[2:]
    every = torch.arange(keys) if some is None else some
    bits = MAX_BITS if inputs.query.dtype in (torch.float32, torch.float64) else 1
    state, chunks, call = generator_state(subject.device), [], flat(inputs)
    for part in torch.split(every.to(inputs.value.device), bits * features):
        set_generator_state(subject.device, state)
        value = torch.zeros_like(inputs.value, memory_format=torch.contiguous_format)
        place = torch.arange(len(part), device=value.device)
        value[:, :, part, place // bits] = (2.0 ** (place % bits)).to(value.dtype)
        output = run(subject, leaf_copies(replace(call, value=_like(inputs.value, value))), "dropout").output.detach()
        numbers = (output.cpu().double() * (keys * (1 - inputs.dropout))).round().long()
        chunks.append((numbers[..., None] >> torch.arange(bits) & 1).flatten(-2)[..., : len(part)].bool())
    return torch.cat(chunks, -1)


def drawn_factors(evaluated: Evaluated) -> Tensor:
    """Z (B,H,Q,K) of the draw from the generator's present state; 1/(1-p) at hidden pairs, where it cannot be seen."""
    kept = kept_weights(evaluated.subject, flat(evaluated.inputs)) > 0
    return (kept | ~evaluated.visible).double() / (1.0 - evaluated.inputs.dropout)


def kept_draws(evaluated: Evaluated, count: int) -> Tensor:
    """(count,B,H,Q,K) bool, True where a pair was kept, of so many draws one after another."""
    device, state_after = evaluated.subject.device, None
    draws = []
    for _ in range(count):
        if state_after is not None:
            set_generator_state(device, state_after)
        draws.append(kept_weights(evaluated.subject, flat(evaluated.inputs)) > 0)
        state_after = generator_state(device)
    return torch.stack(draws)


def _like(old: Tensor, new: Tensor) -> Tensor:
    return new.requires_grad_(old.requires_grad)
