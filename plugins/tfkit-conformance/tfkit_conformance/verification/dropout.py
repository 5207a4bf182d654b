"""Dropout acts in training alone, at every place where the spec has it, each with the probability that the spec says there.

R40   with every dropout at 0, training mode gives what evaluation mode gives, to the bit
      alone, with all others at 0, each dropout changes what nodes give
      of n numbers that it is given, it drops K ~ Binomial(n, p) and passes the others on as x / (1 - p)

K is counted in the run of the model and over `MANY` numbers more. It may be off from n p by no more than t with

    P(|K - n p| >= t) <= 2 exp(-t^2 / (2 (n p (1 - p) + t / 3))) = RARE         (Bernstein's inequality)

The weights that an attention drops are read off with values that are unit vectors: the output of a query is then its weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from tfkit import Graph, Model
from tfkit.inspection import BoundBackend, layers_of, sequence
from tfkit.plugin import AttentionInputs, AttentionOutput
from tfkit.plugin.model_parts import MultiHeadAttention

from ..attention.bound import UNIT
from ..finding import Violation
from ..site_hooks import replaced_backends
from .expected import stacks
from .model_under_test import ModelUnderTest
from .recording import run
from .rounding import copied, silence, trained_without_dropout
from .row import NotApplicable, same
from .sites import prepared
from .wiring import WIRINGS

CHECK = "dropout"
MANY = 2**16
RARE = 1e-12
CALL_DRAWS = 64
"""Draws of one call of an attention."""
WITH_DROPOUT = ("tokens", "patches", "convolutions", "dense", "classify", "rnn")
"""The kinds of nodes whose option `dropout` is that of a module of their own."""


@dataclass(frozen=True)
class Place:
    """One dropout of the spec: the module `path` below `nodes`, or the weights of an attention site of that name."""

    path: str
    p: float
    words: str
    weights: bool = False


def training_without_dropout(subject: ModelUnderTest) -> None:
    """R40."""
    trained = run(trained_without_dropout(subject.model), subject.batch)
    for name, tensor in subject.baseline.items():
        words = "with dropout 0, training mode must give what evaluation mode gives"
        same(CHECK, trained[name], tensor, words, f"`{name}`")


def dropout_acts(subject: ModelUnderTest) -> None:
    """Every dropout of the spec, alone, and with its probability; those of plugins with the probability that they have."""
    model: Model = copied(subject.model).train()
    places = list(expected_dropouts(subject.graph))
    known = {f"nodes.{place.path}" for place in places}
    places += [
        Place(path.removeprefix("nodes."), module.p, f"the dropout `{path}`")
        for path, module in model.named_modules()
        if isinstance(module, nn.Dropout) and module.p > 0.0 and path not in known
    ]
    if not places:
        raise NotApplicable("the spec has no dropout")
    probabilities = {place.path: _probability(model, place) for place in places}
    silence(model)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(subject.seed)
        quiet = run(model, subject.batch)
        for place in places:
            _set(model, place, probabilities[place.path])
            note = _weights_noted if place.weights else _module_noted
            with note(model, place) as measured:
                loud = run(model, subject.batch)
            _set(model, place, 0.0)
            measured()
            if all(torch.equal(loud[name], tensor) for name, tensor in quiet.items()):  # a half dtype may round an output alone
                raise Violation(CHECK, f"{place.words} changes nothing in training; the spec says {place.p:g}")


def expected_dropouts(graph: Graph) -> Iterator[Place]:
    """Every dropout of a spec that is not 0."""
    for node in graph.nodes.values():
        options: Any = node.options
        if node.part.kind not in WITH_DROPOUT:
            continue
        yield from _if_any(f"{node.name}.dropout", options.dropout, f"the dropout of `{node.name}`")
        if node.part.kind == "rnn":
            readout, attention = options.readout, options.cross_attention
            words = f"the dropout of the readout of `{node.name}`"
            yield from _if_any(f"{node.name}.readout.dropout", getattr(readout, "dropout", 0.0), words)
            for site, _ in node.sites():
                yield from _if_any(site, attention.dropout, f"the dropout of the weights of {site}", True)
    for node in stacks(graph):
        seen = set()
        for index, (number, layer) in enumerate(sequence(layers_of(node.options))):
            for part in layer.sublayers or ():
                name = part.options.name
                full, below = f"{node.name}.{index}.{name}", f"{node.name}.layers.{number}"
                inner, is_site = getattr(part.options, "dropout", 0.0), full in dict(node.sites())
                if is_site:
                    yield from _if_any(full, inner, f"the dropout of the weights of {full}", True)
                if number in seen:
                    continue
                if part.kind == "ffn":
                    yield from _if_any(f"{below}.branches.{name}.dropout", inner, f"the dropout inside {full}")
                if layer.placement is not None and layer.placement.kind in WIRINGS:
                    yield from _if_any(f"{below}.residuals.{name}.dropout", layer.dropout, f"the dropout after {full}")
            seen.add(number)


def _if_any(path: str, p: float, words: str, weights: bool = False) -> Iterator[Place]:
    if p > 0.0:
        yield Place(path, float(p), words if weights else f"{words} (`nodes.{path}`)", weights)


def _attention(model: Model, place: Place) -> MultiHeadAttention:
    return next(use.attention for use in model.attention_sites() if use.site == place.path)


def _module(model: Model, place: Place) -> nn.Module:
    try:
        return model.get_submodule(f"nodes.{place.path}")
    except AttributeError:
        raise Violation(CHECK, f"{place.words} is {place.p:g} in the spec, and there is none in the model") from None


def _probability(model: Model, place: Place) -> float:
    """The probability that the model has at a place. What it drops is measured; this only turns it on."""
    return _attention(model, place).config.dropout if place.weights else getattr(_module(model, place), "p", place.p)


def _set(model: Model, place: Place, p: float) -> None:
    if place.weights:
        attention = _attention(model, place)
        attention.config = replace(attention.config, dropout=p)
    else:
        _module(model, place).p = p  # type: ignore[assignment]


@contextmanager
def _module_noted(model: Model, place: Place) -> Iterator[Callable[[], None]]:
    """The calls of a module in a run; what is yielded checks them, once the run has ended."""
    module, calls = _module(model, place), list[tuple[Tensor, Tensor]]()

    def measured() -> None:
        if not calls:
            raise Violation(CHECK, f"{place.words} is never called in training; the spec says {place.p:g}")
        more = torch.ones(MANY, dtype=calls[0][0].dtype, device=calls[0][0].device)
        _set(model, place, p)
        with torch.no_grad():
            calls.append((more, module(more)))
        _set(model, place, 0.0)
        for x, y in calls:
            _counted(place, x, y)

    p = getattr(module, "p", place.p)
    handle = module.register_forward_hook(lambda _, inputs, y: calls.append((inputs[0].detach().clone(), y.detach().clone())))
    try:
        yield measured
    finally:
        handle.remove()


@contextmanager
def _weights_noted(model: Model, place: Place) -> Iterator[Callable[[], None]]:
    """The calls of an attention site in a run; what is yielded checks what its backend drops."""
    calls: list[tuple[BoundBackend, AttentionInputs]] = []

    def noted(site: str, backend: BoundBackend) -> BoundBackend:
        def attend(inputs: AttentionInputs, options: Any) -> AttentionOutput:
            if site == place.path:
                calls.append((backend, inputs))
            return backend.attend(inputs, options)

        return replace(backend, attend=attend)

    def measured() -> None:
        if not calls:
            raise Violation(CHECK, f"{place.words}: the site never called its backend")
        undropped, dropped = [], []
        for backend, inputs in calls:
            if inputs.dropout != place.p:
                raise Violation(CHECK, f"{place.words} is {inputs.dropout:g} in training; the spec says {place.p:g}")
            whole = _weights(backend, replace(inputs, dropout=0.0)).flatten()
            for _ in range(
                min(CALL_DRAWS, -(-MANY // (8 * len(calls) * max(1, whole.numel()))))
            ):  # small sites are asked again
                undropped.append(whole)
                dropped.append(_weights(backend, inputs).flatten())
        _counted(place, torch.cat(undropped), torch.cat(dropped))

    with replaced_backends(model, noted):
        yield measured


@torch.no_grad()
def _weights(backend: BoundBackend, inputs: AttentionInputs) -> Tensor:
    """The weights (B, H, Q, K) of a call, after dropout. Each part of the values draws anew, so every weight is drawn once."""
    B, G, K, V = inputs.value.shape
    unit = torch.eye(K, dtype=inputs.value.dtype, device=inputs.value.device)
    parts = []
    for first in range(0, K, V):
        columns = unit[:, first : first + V]
        values = torch.nn.functional.pad(columns, (0, V - columns.shape[1])).expand(B, G, K, V).contiguous()
        answer = backend.attend(prepared(backend, replace(inputs, value=values)), backend.options).output
        parts.append(answer[..., : columns.shape[1]])
    return torch.cat(parts, -1)


def _counted(place: Place, x: Tensor, y: Tensor) -> None:
    """Raises Violation unless y is x with a share p dropped, and the others divided by 1 - p."""
    real = x != 0
    n = int(real.sum())
    if not n:
        return
    dropped = int((real & (y == 0)).sum())
    log, variance = math.log(2.0 / RARE), n * place.p * (1.0 - place.p)
    most = log / 3.0 + math.sqrt(log * log / 9.0 + 2.0 * log * variance)
    if abs(dropped - n * place.p) > most:
        message = f"{place.words} drops {dropped} of {n} numbers, a share of {dropped / n:.3g}; the spec says {place.p:g}"
        raise Violation(CHECK, message, got=dropped / n, want=place.p, bound=most / n)
    kept = real & (y != 0)
    ratio = y[kept].double() / x[kept].double() * (1.0 - place.p)
    allowed = 64.0 * UNIT[x.dtype] if not place.weights else 1e3 * UNIT[x.dtype]
    if kept.any() and float((ratio.median() - 1.0).abs()) > allowed:
        message = f"{place.words} multiplies what it keeps by {float(ratio.median()) / (1 - place.p):.4g}, not 1 / (1 - p)"
        raise Violation(CHECK, message, got=float(ratio.median()) / (1 - place.p), want=1 / (1 - place.p))
