"""What is asked of every model, drawn or listed: each function raises where a spec breaks the promise of its name.

Models are in evaluation mode. Every parameter is moved away from its initial value, so that leaving one out shows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

import tfkit
from product.recorded import record
from tfkit import Model
from tfkit.inspection import Target, check_request, max_input_lengths, request_for
from tfkit.plugin.model_parts import load
from tfkit.spec import to_json, to_yaml
from tfkit_conformance.attention.compare import error_ratios, request_of
from tfkit_conformance.finding import Inconclusive
from tfkit_conformance.verification.batch import Batch, draw, other_ids
from tfkit_conformance.verification.row import close, same
from whole_models.rounding import APART, rounding

ROWS = 3


@dataclass(frozen=True)
class Trial:
    """A spec, where it is tried, and the seed and the lengths of its batch."""

    spec: tfkit.ModelSpec
    catalogue: tfkit.Catalogue
    lengths: tuple[int, ...] = (7, 6)
    seed: int = 0
    device: str = "cpu"

    def __repr__(self) -> str:
        return f"Trial(lengths={self.lengths}, seed={self.seed}, device={self.device!r}) of\n{to_yaml(self.spec)}"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(repr(self))  # Hypothesis would print every field of every entry of the catalogue

    def model(self, dtype: torch.dtype = torch.float64, backend: Any = "eager") -> Model:
        model = tfkit.build(self.spec, self.catalogue, dtype=dtype, backend=backend, device=self.device)
        generator = torch.Generator().manual_seed(self.seed)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += (0.2 * torch.randn(parameter.shape, generator=generator)).to(parameter)
        return model.eval()

    def batch(self, model: Model) -> Batch:
        """Random ids with padding; `call_of` chooses how the padding is given."""
        lengths = {
            name: min(self.lengths[number % len(self.lengths)], limit or 99)
            for number, (name, limit) in enumerate(max_input_lengths(tfkit.graph_of(self.spec)).items())
        }
        return draw(model, lengths, ROWS, self.seed, self.device)

    def able(self, training: bool, dtype: str = "float64") -> Iterator[str]:
        """The backends that declare what every site of the spec needs; `training` includes gradients."""
        target = Target(self.device, capability(self.device), dtype, training)
        sites = [site for _, site in tfkit.graph_of(self.spec).sites()]
        for entry, options in self.catalogue.ready("backend"):
            if all(check_request(entry, request_for(site, target), options).accepted for site in sites):
                yield entry.name


def capability(device: str) -> tuple[int, int] | None:
    return torch.cuda.get_device_capability() if device == "cuda" else None


def call_of(trial: Trial, batch: Batch) -> dict[str, Any]:
    """The keywords of a call. Padding is given by `pad_id` alone, by masks, or by lengths, as the seed says. Lengths need
    the padding on the right, so the tokens of each row move to the left."""
    call = {"segments": batch.segments, **batch.ids}
    form = ("ids", "masks", "lengths")[trial.seed % 3]
    if form == "masks":
        call["masks"] = batch.visible
    elif form == "lengths":
        shown = {name: visible.to(torch.int8) for name, visible in batch.visible.items()}
        order = {name: each.argsort(dim=1, descending=True, stable=True) for name, each in shown.items()}
        call |= {name: ids.gather(1, order[name]) for name, ids in batch.ids.items()}
        call["segments"] = {name: segments.gather(1, order[name]) for name, segments in batch.segments.items()}
        call["lengths"] = {name: visible.sum(1) for name, visible in batch.visible.items()}
    return call


def words(batch: Batch) -> dict[str, Any]:
    return {"segments": batch.segments, **batch.ids}


def round_trip(trial: Trial) -> None:
    """The resolved spec, printed, is read as an equal spec, and prints the same again."""
    for text in (to_yaml(trial.spec), to_json(trial.spec)):
        again = tfkit.parse_spec(text, trial.catalogue)
        assert again == trial.spec, text
    assert to_yaml(again) == to_yaml(trial.spec)


def counts(trial: Trial) -> None:
    """The modules hold as many numbers as the graph counts, and their sites are the graph's."""
    graph, model = tfkit.graph_of(trial.spec), trial.model()
    for trainable in (True, False):
        assert model.parameter_count(trainable) == graph.parameters(trainable)
    assert list(model.sites) == [name for name, _ in graph.sites()]


def sites_within_bounds(trial: Trial, dtype: torch.dtype, names: tuple[str, ...] | None = None) -> tuple[int, float]:
    """Every site's own inputs, given to every backend that declares them (or those named): outputs and gradients within the
    bound of the float64 reference. Gives the number of calls compared and the largest error as a share of its bound. A backend
    without measured rows may be slow: it is compared at one site of the model."""
    evaluated, worst = 0, 0.0
    model = trial.model(dtype)
    recorded = record(model, words(trial.batch(model)))
    for number, (site, (inputs, grad_output)) in enumerate(recorded.items()):
        if inputs.score is not None:
            continue  # a score function is no part of the reference; such sites are compared from end to end
        chosen = number == trial.seed % len(recorded)
        for entry, options in trial.catalogue.ready("backend"):
            if (names is not None and entry.name not in names) or (not entry.auto and not chosen):
                continue
            for gradients in (True, False):
                if check_request(entry, request_of(inputs, gradients), options).accepted:
                    given = inputs if gradients else detached(inputs)
                    try:
                        ratios = error_ratios(load(entry.attend), options, entry.capabilities.numerics, given, grad_output)
                    except Inconclusive:
                        break  # the scores are too large for the dtype
                    evaluated += 1
                    worst = max(worst, *ratios.values())
                    assert max(ratios.values()) <= 1, (site, entry.name, ratios)
                    break
    return evaluated, worst


def detached(inputs: Any) -> Any:
    from torch.utils import _pytree as pytree

    return pytree.tree_map_only(Tensor, Tensor.detach, inputs)


def evaluated(model: Model, call: dict[str, Any], gradients: bool, seed: int = 3) -> list[Tensor]:
    """The outputs, and the gradient of each parameter for one random gradient of the outputs."""
    with torch.set_grad_enabled(gradients):
        outputs = list(model(**call).values())
    if not gradients:
        return outputs
    draw = torch.Generator().manual_seed(seed)
    towards = [torch.randn(output.shape, generator=draw, dtype=torch.float64).to(output) for output in outputs]
    wanted = [parameter for parameter in model.parameters() if parameter.requires_grad]
    found = torch.autograd.grad(outputs, wanted, towards, allow_unused=True)
    return outputs + [torch.zeros_like(p) if g is None else g for p, g in zip(wanted, found, strict=True)]


def same_under_every_backend(
    trial: Trial, dtype: torch.dtype = torch.float64, names: tuple[str, ...] | None = None
) -> dict[str, float]:
    """Outputs and gradients under every able backend (or those named) are those of eager in float64 on the CPU, but for
    rounding. Gives the largest difference of each backend as a share of what is allowed. The weights reach each backend as a
    checkpoint (A12). Each backend serves all sites of the model."""
    training, inferring = (set(trial.able(flag, str(dtype).removeprefix("torch."))) for flag in (True, False))
    names = tuple(name for name in sorted(inferring) if name != "eager" or dtype != torch.float64) if names is None else names
    if not names:
        return {}
    first = trial.model(dtype)
    model = replace(trial, device="cpu").model()
    weights = first.state_dict()
    model.load_state_dict(weights)
    call = call_of(trial, replace(trial, device="cpu").batch(model))
    here = call_of(trial, trial.batch(first))
    want = evaluated(model, call, True)
    allowed = [APART * bound for bound in rounding(lambda: evaluated(model, call, True), torch.finfo(dtype).eps / 2, model)]
    labels = [f"output {name}" for name in model.plan.outputs]
    labels += [f"d {name}" for name, parameter in model.named_parameters() if parameter.requires_grad]
    found = {}
    for name in names:
        other = tfkit.build(trial.spec, trial.catalogue, dtype=dtype, seed=9, device=trial.device, backend="eager").eval()
        assert list(other.state_dict()) == list(weights)
        other.load_state_dict(weights)
        other.set_backend(name)
        try:
            got = evaluated(other, here, name in training)
        except tfkit.BackendRefused as refusal:
            # The spec does not announce lengths: a caller chooses them. A backend may refuse them, and nothing else.
            if "lengths" not in here or "_lengths is not declared" not in str(refusal):
                raise
            continue
        found[name] = max(
            close("backend", one, two, bound, f"under `{name}`", label)
            for one, two, bound, label in zip(got, want, allowed, labels, strict=False)
        )
    return found


def causal(trial: Trial, backend: str) -> bool:
    """Tokens after a position change nothing at it and before it, not one bit. False where no input is decoded."""
    model = trial.model(torch.float32, backend)
    batch = trial.batch(model)
    tried = False
    for name in batch.ids:
        if name in model.plan.undecodable:
            continue
        length = batch.ids[name].shape[1]
        draw = torch.Generator().manual_seed(trial.seed)
        for start in {1, length // 2, length - 1} - {0, length}:
            ids = batch.ids[name].clone()
            ids[:, start:] = other_ids(model.plan.inputs[name], ids[:, start:], draw)
            with torch.no_grad():
                before = model(**words(batch))
                after = model(**words(batch.with_ids(name, ids)))
            tried = True
            for output, tensor in before.items():
                if output in model.plan.followers[name]:
                    progress = f"with other tokens from {start} on"
                    same("causal", after[output][:, :start], tensor[:, :start], progress, output)
    return tried


def stepwise(trial: Trial, chunks: tuple[int, ...], backend: str) -> bool:
    """Decoding in chunks gives what one pass under eager gives, in float64, but for rounding. False where nothing can be
    decoded."""
    model, plain = trial.model(backend=backend), trial.model()
    batch = trial.batch(model)
    targets = [name for name in batch.ids if name not in model.plan.undecodable]
    for target in targets:
        others = {name: ids for name, ids in batch.ids.items() if name != target}
        given_segments = {name: segments for name, segments in batch.segments.items() if name != target}
        ids, own, visible = batch.ids[target], batch.segments.get(target), batch.visible[target]
        names = [name for name in model.plan.outputs if name in model.plan.followers[target]]

        @torch.no_grad()
        def whole(call: dict[str, Any], names: list[str]) -> list[Tensor]:
            outputs = plain(**call)
            return [outputs[name] for name in names]

        call = {"masks": {target: visible}, **words(batch)}
        want = dict(zip(names, whole(call, names), strict=True))
        allowed = dict(zip(names, rounding(partial(whole, call, names), model=plain), strict=True))
        state = model.start(
            target, batch=None if others else ROWS, capacity=1 + trial.seed % 5, segments=given_segments, **others
        )
        start, pieces = 0, []
        while start < ids.shape[1]:
            now = slice(start, start + chunks[len(pieces) % len(chunks)])
            pieces.append(model.step(state, ids[:, now], visible[:, now], segments=None if own is None else own[:, now]))
            start = now.stop
        for name, tensor in want.items():
            got = torch.cat([piece[name] for piece in pieces], 1)
            close("stepwise", got, tensor, APART * allowed[name], f"in chunks of {chunks}", name, visible)
    return bool(targets)
