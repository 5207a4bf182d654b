"""Run the model of a directory once, on a text or an image, and keep its attention weights and probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..data import (
    Normalisation,
    TextTokeniser,
    fits,
    has_labels,
    read_image,
    read_image_facts,
    read_labels,
    read_tokenisers,
    roles_for,
)
from ..errors import Diagnostic, InputError
from ..generate import Hypothesis, Search, generate_batched
from ..io import load, model_in
from ..nn.model import Model
from ..nn.model_plan import ModelPlan
from ..slots.node import FeatureRule, ImageRule
from .beam_tree import beam_trees
from .labels import labels, short
from .observation import Observation, Picture, Prediction, SiteWeights

ALTERNATIVES = 5
"""Tokens that are kept at every place, the most probable ones."""


@dataclass(frozen=True)
class Request:
    """What a model reads, and what is kept of the run.

    Attributes:
        text: The text; None for an image.
        target: The translation or the continuation; None: the model generates it.
        image: A PNG or JPEG file; None for a text.
        sites: Attention sites, by name or pattern; all if empty.
        beams: The beams of the search; 1 is greedy.
        tokens: New tokens at most, of a continuation.
        max_tokens: The limit of tokens of each side. Longer texts are cut, and a notice says so.
    """

    text: str | None = None
    target: str | None = None
    image: str | None = None
    sites: tuple[str, ...] = ()
    beams: int = 5
    tokens: int = 20
    max_tokens: int = 256


def observe(directory: str | Path, request: Request, **place: Any) -> Observation:
    """Run a model once.

    Args:
        directory: A directory that `tfkit train` or `tfkit import` wrote.
        request: What it reads.
        place: The keywords `device`, `backend` and `catalogue` of `tfkit.load`.

    Returns:
        The weights and probabilities. A model without attention has no sites, and a notice says so.

    Raises:
        StoreError: a file is missing or altered.
        InputError: the model reads something else, or has no such site.
    """
    found = model_in(Path(directory))
    model = load(found, **place).eval()
    return _Run(model, found, request).observation()


class _Run:
    """One run: the inputs of the model, its outputs, and the names of positions by input."""

    def __init__(self, model: Model, directory: Path, request: Request) -> None:
        self.model, self.plan, self.directory, self.request = model, model.plan, directory, request
        self.sites = sorted(model.backends.matching(request.sites or "*"), key=[*model.sites].index) if self._attends() else []
        self.notices: list[str] = []
        if not self.sites:
            self.notices.append(f"{self.plan.name} has no attention: the page shows probabilities of tokens only.")

    def _attends(self) -> bool:
        if not self.model.sites and self.request.sites:
            message = f"`{self.plan.name}` has no attention, and so no site `{self.request.sites[0]}`"
            raise InputError(Diagnostic("TFK076", message, "leave --site out: the page then shows the probabilities of tokens"))
        return bool(self.model.sites)

    @torch.no_grad()
    def observation(self) -> Observation:
        rules = self.plan.inputs.values()
        if any(isinstance(rule, FeatureRule) for rule in rules) or len(rules) > 2:
            message = f"`{self.plan.name}` has the inputs {', '.join(self.plan.inputs)}"
            raise InputError(Diagnostic("TFK107", message, "name a model of one or two texts, or of an image"))
        if fits(self.plan, "images"):
            return self._image()
        if self.request.text is None:
            message = f"`{self.plan.name}` reads a text, and none was given"
            raise InputError(Diagnostic("TFK107", message, "write --text"))
        if fits(self.plan, "parallel"):
            return self._translation(self.request.text)
        if fits(self.plan, "language"):
            return self._continuation(self.request.text)
        return self._encoded(self.request.text)

    def _translation(self, text: str) -> Observation:
        roles = roles_for(self.plan, "parallel")
        source_node = roles.of("source")
        tokenisers = read_tokenisers(self.directory, ("source", "target"))
        source, target = tokenisers["source"], tokenisers["target"]
        ids = source.source_frame(self._fitting(source, text, source_node, len(source.source_frame), "text"))
        hypotheses: list[Hypothesis] = []
        if self.request.target is None:
            [hypotheses] = generate_batched(
                self.model, [ids], self._search(1.0, 50), target=roles.target, output=roles.output
            )  # fmt: skip
            predicted = hypotheses[0].ids.tolist()
        else:
            room = len(target.source_frame)
            predicted = target.source_frame(self._fitting(target, self.request.target, roles.target, room, "target"))
        read = [roles.start_id, *predicted[:-1]]
        outputs = self._outputs({source_node: ids, roles.target: read})
        by_input = {source_node: labels(source, ids), roles.target: labels(target, read)}
        made = labels(target, predicted)
        return self._observed(
            outputs, by_input, text, self.request.target or target.decode(predicted),
            generated={roles.target: made},
            predictions=_predictions(outputs[roles.output][0], predicted, target),
            beams=beam_trees(hypotheses, lambda some: labels(target, some)),
        )  # fmt: skip

    def _continuation(self, text: str) -> Observation:
        roles = roles_for(self.plan, "language")
        tokeniser = read_tokenisers(self.directory, ("target",))["target"]
        frame = tokeniser.prompt_frame
        ids = frame(self._fitting(tokeniser, text, roles.target, len(frame), "text"))
        limit = self._limit(roles.target)
        hypotheses: list[Hypothesis] = []
        new: list[int] = []
        if self.request.target is not None:
            new = tokeniser.encode([self.request.target])[0]
        elif limit > len(ids):
            search = self._search(0.0, min(self.request.tokens, limit - len(ids)))
            [hypotheses] = generate_batched(self.model, [ids], search, target=roles.target, output=roles.output)
            new = hypotheses[0].ids.tolist()
        if len(ids) + len(new) > limit:
            self.notices.append(self._cut("target", len(new), limit - len(ids)))
        read = [*ids, *new][:limit]
        outputs = self._outputs({roles.target: read})
        logits = outputs[roles.output][0]
        return self._observed(
            outputs, {roles.target: labels(tokeniser, read)}, text, tokeniser.decode(new),
            predictions=_predictions(logits[:-1], read[1:], tokeniser),
            beams=beam_trees(hypotheses, lambda some: labels(tokeniser, some)),
        )  # fmt: skip

    def _encoded(self, text: str) -> Observation:
        [node] = self.plan.inputs
        self._no_target("reads one text")
        tokeniser = read_tokenisers(self.directory, ("target",))["target"]
        first, tab, second = text.partition("\t")
        if tab:
            half = max(1, (self._limit(node) - len(tokeniser.pair_frame)) // 2)
            sides = [self._fitting(tokeniser, each, node, 0, "text", half) for each in (first, second)]
            ids = tokeniser.pair_frame(*sides)
            segments = tokeniser.pair_frame.segments_of(*map(len, sides))
        else:
            ids = tokeniser.text_frame(self._fitting(tokeniser, text, node, len(tokeniser.text_frame), "text"))
            segments = []
        has_segments = tab and self.plan.token_rule(node).segments > 1
        outputs = self._outputs({node: ids}, {node: segments} if has_segments else {})
        vocabulary = self.plan.token_rule(node).vocab_size
        words = [name for name in self.plan.sequences if self.plan.widths.get(name) == vocabulary and name in outputs]
        predictions = _predictions(outputs[words[0]][0], ids, tokeniser) if words else ()
        return self._observed(outputs, {node: labels(tokeniser, ids)}, text, predictions=predictions)

    def _image(self) -> Observation:
        roles = roles_for(self.plan, "images")
        rule = self.plan.inputs[roles.target]
        assert isinstance(rule, ImageRule), "the roles of images are those of an input of images"
        self._no_target("reads an image")
        if self.request.image is None:
            raise InputError(
                Diagnostic("TFK107", f"`{self.plan.name}` reads an image, and none was given", "write --image FILE")
            )
        pixels = read_image(self.request.image, rule)
        facts = read_image_facts(self.directory)
        image = Normalisation(tuple(facts.mean), tuple(facts.std))(torch.from_numpy(pixels.copy())[None].float() / 255)
        model = self.model
        outputs = model(weights=self.sites, **{roles.target: image.to(model.device, model.dtype)})
        rows, columns = pixels.shape[1] // rule.patch, pixels.shape[2] // rule.patch
        weights = outputs.get("weights", {})
        before = next((each.shape[-1] for each in weights.values()), rows * columns) - rows * columns
        names = [f"token {at + 1} before the image" for at in range(before)]
        names += [f"row {row + 1}, column {column + 1}" for row in range(rows) for column in range(columns)]
        picture = Picture(np.ascontiguousarray(pixels.transpose(1, 2, 0)), rows, columns, before)
        return self._observed(outputs, {roles.target: tuple(names)}, self.request.image, picture=picture)

    def _no_target(self, what: str) -> None:
        if self.request.target is not None:
            raise InputError(Diagnostic("TFK107", f"`{self.plan.name}` {what} and has no target", "leave --target out"))

    def _search(self, factor: float, extra: int) -> Search:
        beams = self.request.beams
        limits: dict[str, Any] = {"length_factor": factor, "extra_length": extra}
        return Search(**limits, beams=beams, n_best=beams) if beams > 1 else Search(kind="greedy", **limits)

    def _limit(self, node: str) -> int:
        return min(self.request.max_tokens, self.plan.max_input_lengths.get(node, self.request.max_tokens))

    def _fitting(
        self, tokeniser: TextTokeniser, text: str, node: str, room: int, what: str, limit: int | None = None
    ) -> list[int]:
        """The ids of a text, cut to what fits beside `room` special tokens."""
        [ids] = tokeniser.encode([text])
        if not ids:
            raise InputError(Diagnostic("TFK103", f"--{what} has no token", "write some text"))
        most = max(1, self._limit(node) - room) if limit is None else limit
        if len(ids) > most:
            self.notices.append(self._cut(what, len(ids), most))
        return ids[:most]

    def _cut(self, what: str, count: int, kept: int) -> str:
        return (
            f"{self.plan.name}: the {what} has {count:,} tokens; the first {max(kept, 0):,} are shown, the others were cut off."
        )

    def _outputs(self, ids: dict[str, list[int]], segments: dict[str, list[int]] | None = None) -> Any:
        device = self.model.device
        given = {name: torch.tensor([each], device=device) for name, each in ids.items()}
        lengths = {name: torch.tensor([len(each)], device=device) for name, each in ids.items()}
        rows = {name: torch.tensor([each], device=device) for name, each in (segments or {}).items()}
        return self.model(weights=self.sites, lengths=lengths, segments=rows, **given)

    def _observed(
        self, outputs: Any, by_input: dict[str, tuple[str, ...]], text: str, output: str = "",
        generated: dict[str, tuple[str, ...]] | None = None, predictions: tuple[Prediction, ...] = (), **rest: Any,
    ) -> Observation:  # fmt: skip
        weights = outputs.get("weights", {})
        sites = tuple(self._site(site, weights[site][0], by_input, generated or {}) for site in self.sites)
        return Observation(
            self.plan.name, text, output, sites, predictions, self._classes(outputs), notices=tuple(self.notices), **rest
        )

    def _site(
        self, site: str, weights: Tensor, by_input: dict[str, tuple[str, ...]], generated: dict[str, tuple[str, ...]]
    ) -> SiteWeights:
        """The weights (H, Q, K) of a site. The queries of cross-attention are the tokens that the decoder predicts there."""
        node = _input_of(self.plan, site.partition(".")[0])
        crosses = site in self.model.memory_sites
        other = next((name for name in by_input if name != node), node)
        queries = generated.get(node, by_input[node]) if crosses else by_input[node]
        keys = by_input[other] if crosses else by_input[node]
        _, Q, K = weights.shape
        return SiteWeights(site, _named(queries, Q), _named(keys, K), weights.float().cpu().numpy(), not crosses)

    def _classes(self, outputs: Any) -> tuple[tuple[str, float], ...]:
        rows = [name for name in self.plan.outputs if name not in self.plan.sequences and name in self.plan.widths]
        if not rows or not has_labels(self.directory):
            return ()
        names = read_labels(self.directory)
        probabilities = outputs[rows[0]][0].float().softmax(-1).tolist()
        if len(probabilities) != len(names):
            return ()
        return tuple(
            sorted(((short(name), each) for name, each in zip(names, probabilities, strict=True)), key=lambda one: -one[1])
        )


def _named(names: tuple[str, ...], count: int) -> tuple[str, ...]:
    """The names of positions, or their numbers if a node changed the number of positions."""
    return names if len(names) == count else tuple(str(at + 1) for at in range(count))


def _input_of(plan: ModelPlan, node: str) -> str:
    """The input whose positions a node has."""
    while node not in plan.inputs:
        edges = plan.wires[node].edges
        node = (edges.get("input") or next(iter(edges.values()))).partition(".")[0]
    return node


def _predictions(logits: Tensor, ids: Sequence[int], tokeniser: TextTokeniser) -> tuple[Prediction, ...]:
    """The probabilities of tokens (L,) from logits (L, V)."""
    if not len(ids):
        return ()
    probabilities = logits.float().softmax(-1)
    own = probabilities.gather(1, torch.tensor(ids, device=logits.device)[:, None])[:, 0].tolist()
    best = probabilities.topk(min(ALTERNATIVES, probabilities.shape[1]))
    return tuple(
        Prediction(name, probability, tuple(zip(labels(tokeniser, numbers), values, strict=True)))
        for name, probability, numbers, values in zip(
            labels(tokeniser, ids), own, best.indices.tolist(), best.values.tolist(), strict=True
        )
    )
