"""Run the model of a directory once, on a text or an image, and keep its attention weights and probabilities."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
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
    reads_pairs,
    roles_for,
)
from ..errors import Diagnostic, InputError
from ..generate import Hypothesis, Search, beam_search, generate_batched
from ..io import load, model_in
from ..nn.evaluating import check_results
from ..nn.model import Model
from ..nn.model_plan import ModelPlan
from ..slots.node import FeatureRule, ImageRule
from .labels import labels, short
from .observation import Beam, Ends, Observation, Picture, Prediction, SiteWeights
from .request import Request, check_given, features_in

ALTERNATIVES = 5
"""Tokens that are kept at every place, the most probable ones."""


def predictions(logits: Tensor, ids: Sequence[int], tokeniser: TextTokeniser) -> tuple[Prediction, ...]:
    """The probabilities of tokens (L,) from logits (L, V)."""
    if not len(ids):
        return ()
    probabilities = logits.float().softmax(-1)
    token_probabilities = probabilities.gather(1, torch.tensor(ids, device=logits.device)[:, None])[:, 0].tolist()
    best = probabilities.topk(min(ALTERNATIVES, probabilities.shape[1]))
    return tuple(
        Prediction(name, probability, tuple(zip(labels(tokeniser, numbers), values, strict=True)))
        for name, probability, numbers, values in zip(
            labels(tokeniser, ids), token_probabilities, best.indices.tolist(), best.values.tolist(), strict=True
        )
    )


def best_first(names: Sequence[str], logits: Tensor) -> tuple[tuple[str, float], ...]:
    """The names with their probabilities from logits (N,), best first."""
    rows = zip(names, logits.float().softmax(-1).tolist(), strict=True)
    return tuple(sorted(rows, key=lambda row: -row[1]))


def ends(logits: Tensor, tokens: Sequence[str]) -> tuple[Ends, ...]:
    """The probabilities that an answer starts and ends at each token, from logits (L, 2)."""
    probabilities = logits.float().softmax(0).tolist()
    return tuple(Ends(token, *pair) for token, pair in zip(tokens, probabilities, strict=True))


def likeliest(candidates: Sequence[Ends]) -> tuple[int, int]:
    """The first and the last token of the answer with the largest product of both probabilities."""
    best, span, start = -1.0, (0, 0), 0
    for at, candidate in enumerate(candidates):
        start = at if candidate.start > candidates[start].start else start
        if candidates[start].start * candidate.end > best:
            best, span = candidates[start].start * candidate.end, (start, at)
    return span


Row = tuple[tuple[int, ...], tuple[float, ...], float, bool]
"""The remaining ids of a hypothesis, their probabilities, its score, and whether it is the best one."""


def beam_trees(hypotheses: Sequence[Hypothesis], label: Callable[[Sequence[int]], tuple[str, ...]]) -> tuple[Beam, ...]:
    """The trees of the hypotheses of one text, best first. `label` converts ids to texts."""
    rows: list[Row] = [
        (
            tuple(hypothesis.ids.tolist()),
            tuple(map(math.exp, hypothesis.token_log_probabilities.tolist())),
            hypothesis.score,
            number == 0,
        )
        for number, hypothesis in enumerate(hypotheses)
    ]
    return _branches(rows, label)


def _branches(rows: Sequence[Row], label: Callable[[Sequence[int]], tuple[str, ...]]) -> tuple[Beam, ...]:
    groups: dict[int, list[Row]] = {}
    for row in rows:
        if row[0]:
            groups.setdefault(row[0][0], []).append(row)
    return tuple(_beam(group, label) for group in groups.values())


def _beam(rows: Sequence[Row], label: Callable[[Sequence[int]], tuple[str, ...]]) -> Beam:
    """The tree of rows that start with the same token."""
    ids = [row[0] for row in rows]
    shared = next((at for at, column in enumerate(zip(*ids, strict=False)) if len(set(column)) > 1), min(map(len, ids)))
    rest: list[Row] = [(row[0][shared:], row[1][shared:], row[2], row[3]) for row in rows]
    ended = next((score for left, _, score, _ in rest if not left), None)
    tokens = tuple(zip(label(ids[0][:shared]), rows[0][1], strict=False))
    return Beam(tokens, ended, any(row[3] for row in rows), _branches(rest, label))


def observe(directory: str | Path, request: Request, **place: Any) -> Observation:
    """Run a model once.

    Args:
        directory: A directory that `tfkit train` or `tfkit import` wrote.
        request: What it reads.
        place: The keywords `device`, `backend`, `allow_nan` and `catalogue` of `tfkit.load`.

    Returns:
        The weights and probabilities. A model without attention has no sites, and a notice says so.

    Raises:
        StoreError: a file is missing or altered.
        InputError: the model reads something else, has no such site, or computes NaN.
    """
    [observation] = observe_each(directory, [request], **place)
    return observation


def observe_each(directory: str | Path, requests: Sequence[Request], **place: Any) -> list[Observation]:
    """Load a model, and run it once for each request. Arguments and errors as in `observe`."""
    model_directory = model_in(Path(directory))
    model = load(model_directory, **place).eval()
    return [_Run(model, model_directory, request).observation() for request in requests]


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
        check_given(self.plan, self.request)
        kinds = {type(rule) for rule in self.plan.inputs.values()}
        if FeatureRule in kinds:
            return self._spoken(str(self.request.features))
        if ImageRule in kinds:
            return self._image(str(self.request.image))
        text = str(self.request.text)
        if fits(self.plan, "parallel"):
            return self._translation(text)
        return self._continuation(text) if fits(self.plan, "language") else self._encoded(text)

    def _translation(self, text: str) -> Observation:
        roles = roles_for(self.plan, "parallel")
        source_node = roles.of("source")
        tokenisers = read_tokenisers(self.directory, ("source", "target"))
        source, target = tokenisers["source"], tokenisers["target"]
        ids = source.source_frame(self._fitting(source, text, source_node, len(source.source_frame), "text"))

        def search() -> list[Hypothesis]:
            [hypotheses] = generate_batched(self.model, [ids], self._search(1.0, 50), target=roles.target, output=roles.output)
            return hypotheses

        names = {source_node: labels(source, ids)}
        return self._decoded(text, {source_node: ids}, names, target, roles.target, roles.output, roles.start_id, search)

    def _spoken(self, file: str) -> Observation:
        """Frames in, text out."""
        [source] = [name for name, rule in self.plan.inputs.items() if isinstance(rule, FeatureRule)]
        [target] = [name for name in self.plan.inputs if name != source]
        rule = self.plan.token_rule(target)
        [output] = [name for name in self.plan.sequences if self.plan.widths.get(name) == rule.vocab_size]
        frames = torch.from_numpy(features_in(file))[None].to(self.model.device, self.model.dtype)
        count = frames.shape[1]
        if not self.request.sites and count > self.request.max_tokens:
            self.sites = [site for site in self.sites if site in self.model.memory_sites]
            self.notices.append(f"{count:,} frames: cross-attention only. Choose other sites with --site.")

        def search() -> list[Hypothesis]:
            beams, most = self.request.beams, min(self.request.tokens, self._limit(target))
            arguments: dict[str, Any] = {source: frames, "target": target, "output": output, "max_new_tokens": most}
            return beam_search(self.model, beams=beams, n_best=beams, **arguments)[0]

        tokeniser = read_tokenisers(self.directory, ("target",))["target"]
        names = {source: tuple(f"frame {at + 1}" for at in range(count))}
        return self._decoded(file, {source: frames}, names, tokeniser, target, output, rule.start_id or 0, search)

    def _decoded(
        self, text: str, inputs: dict[str, Any], names: dict[str, tuple[str, ...]], tokeniser: TextTokeniser, target: str,
        output: str, start_id: int, search: Callable[[], list[Hypothesis]],
    ) -> Observation:  # fmt: skip
        """A target, given or searched, after a source."""
        hypotheses = search() if self.request.target is None else []
        if self.request.target is None:
            predicted = hypotheses[0].ids.tolist()
        else:
            frame = tokeniser.source_frame
            predicted = frame(self._fitting(tokeniser, self.request.target, target, len(frame), "target"))
        read = [start_id, *predicted[:-1]]
        outputs = self._outputs({**inputs, target: read})
        return self._observed(
            outputs, {**names, target: labels(tokeniser, read)}, text, self.request.target or tokeniser.decode(predicted),
            generated={target: labels(tokeniser, predicted)},
            predictions=predictions(outputs[output][0], predicted, tokeniser),
            beams=beam_trees(hypotheses, lambda some: labels(tokeniser, some)),
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
            predictions=predictions(logits[:-1], read[1:], tokeniser),
            beams=beam_trees(hypotheses, lambda some: labels(tokeniser, some)),
        )  # fmt: skip

    def _encoded(self, text: str) -> Observation:
        [node] = self.plan.inputs
        tokeniser = read_tokenisers(self.directory, ("target",))["target"]
        first, tab, second = text.partition("\t")
        spans = [name for name, rule in self.plan.labels.items() if rule.kind == "span"]
        if "\t" in second or (not tab and (spans or reads_pairs(self.directory))):
            count = text.count("\t")
            message = f"the text has {count} tabs, and one stands between the two texts that `{self.plan.name}` reads"
            raise InputError(Diagnostic("TFK107", message, "write two texts with a tab between them"))
        if tab:
            half = max(1, (self._limit(node) - len(tokeniser.pair_frame)) // 2)
            sides = [self._fitting(tokeniser, side, node, 0, "text", half) for side in (first, second)]
            ids = tokeniser.pair_frame(*sides)
            segments = tokeniser.pair_frame.segments_of(*map(len, sides))
        else:
            ids = tokeniser.text_frame(self._fitting(tokeniser, text, node, len(tokeniser.text_frame), "text"))
            segments = []
        has_segments = tab and self.plan.token_rule(node).segments > 1
        outputs = self._outputs({node: ids}, {node: segments} if has_segments else {})
        vocabulary = self.plan.token_rule(node).vocab_size
        words = [name for name in self.plan.sequences if self.plan.widths.get(name) == vocabulary and name in outputs]
        names = labels(tokeniser, ids)
        predicted = predictions(outputs[words[0]][0], ids, tokeniser) if words else ()
        span_ends = ends(outputs[spans[0]][0], names) if spans else ()
        start, end = likeliest(span_ends)
        answer = tokeniser.decode(ids[start : end + 1]) if span_ends else ""
        return self._observed(outputs, {node: names}, text, answer, predictions=predicted, ends=span_ends)

    def _image(self, file: str) -> Observation:
        [(name, rule)] = [(name, rule) for name, rule in self.plan.inputs.items() if isinstance(rule, ImageRule)]
        pixels = read_image(file, rule)
        facts = read_image_facts(self.directory)
        image = Normalisation(tuple(facts.mean), tuple(facts.std))(torch.from_numpy(pixels.copy())[None].float() / 255)
        inputs = {name: image.to(self.model.device, self.model.dtype)}
        texts = [] if self.request.text is None else self.request.text.split("\t")
        outputs, by_input, rest = self._compared(texts, inputs) if texts else (self._outputs(inputs), {}, {})
        rows, columns = pixels.shape[1] // rule.patch, pixels.shape[2] // rule.patch
        weights = [
            site_weights for site, site_weights in outputs.get("weights", {}).items() if _input_of(self.plan, site) == name
        ]
        before = weights[0].shape[-1] - rows * columns if weights else 0
        names = [f"token {at + 1} before the image" for at in range(before)]
        names += [f"row {row + 1}, column {column + 1}" for row in range(rows) for column in range(columns)]
        picture = Picture(np.ascontiguousarray(pixels.transpose(1, 2, 0)), rows, columns, before)
        title = ", ".join([*texts[:1], file])
        return self._observed(outputs, {**by_input, name: tuple(names)}, title, picture=picture, **rest)

    def _compared(self, texts: list[str], inputs: dict[str, Tensor]) -> tuple[Any, dict[str, tuple[str, ...]], dict[str, Any]]:
        """The outputs for the first of some texts beside an image, its tokens, and the probabilities of all texts."""
        [node] = [name for name in self.plan.inputs if name not in inputs]
        tokeniser = read_tokenisers(self.directory, ("target",))["target"]
        room = len(tokeniser.text_frame)
        rows = [tokeniser.text_frame(self._fitting(tokeniser, text, node, room, "text")) for text in texts]
        outputs = [self._outputs({node: ids, **inputs}) for ids in rows]
        compared = next(name for name in self.plan.outputs if tuple(outputs[0][name].shape) == (1, 1))
        scores = torch.stack([row_outputs[compared][0, 0] for row_outputs in outputs])
        names = [f"{text}, similarity {score:.4g}" for text, score in zip(texts, scores.tolist(), strict=True)]
        return outputs[0], {node: labels(tokeniser, rows[0])}, {"classes": best_first(names, scores)}

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
        ids = tokeniser.encode_masked(text) if fits(self.plan, "masked") else tokeniser.encode([text])[0]
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

    def _outputs(self, inputs: Mapping[str, Any], segments: Mapping[str, list[int]] | None = None) -> Any:
        """The outputs for one row: ids as lists, other inputs as tensors."""
        device, ids = self.model.device, {name: row for name, row in inputs.items() if isinstance(row, list)}
        tensors = {**inputs, **{name: torch.tensor([row], device=device) for name, row in ids.items()}}
        lengths = {name: torch.tensor([len(row)], device=device) for name, row in ids.items()}
        rows = {name: torch.tensor([row], device=device) for name, row in (segments or {}).items()}
        outputs = self.model(weights=self.sites, lengths=lengths, segments=rows, **tensors)
        weights = outputs.get("weights", {})
        for name, tensor in {**{name: outputs[name] for name in self.plan.outputs}, **weights}.items():
            check_results(tensor, [name])
        return outputs

    def _observed(
        self, outputs: Any, by_input: dict[str, tuple[str, ...]], text: str, output: str = "",
        generated: dict[str, tuple[str, ...]] | None = None, predictions: tuple[Prediction, ...] = (), **rest: Any,
    ) -> Observation:  # fmt: skip
        weights = outputs.get("weights", {})
        sites = tuple(self._site(site, weights[site][0], by_input, generated or {}) for site in self.sites)
        rest = {"classes": self._classes(outputs), "predictions": predictions, **rest}
        return Observation(self.plan.name, text, output, sites, notices=tuple(self.notices), **rest)

    def _site(
        self, site: str, weights: Tensor, by_input: dict[str, tuple[str, ...]], generated: dict[str, tuple[str, ...]]
    ) -> SiteWeights:
        """The weights (H, Q, K) of a site. The queries of cross-attention are the tokens that the decoder predicts there."""
        node = _input_of(self.plan, site)
        crosses = site in self.model.memory_sites
        other = next((name for name in by_input if name != node), node)
        queries = generated.get(node, by_input[node]) if crosses else by_input[node]
        keys = by_input[other] if crosses else by_input[node]
        _, Q, K = weights.shape
        patches = isinstance(self.plan.inputs[node], ImageRule)
        return SiteWeights(site, _named(queries, Q), _named(keys, K), weights.float().cpu().numpy(), not crosses, patches)

    def _classes(self, outputs: Any) -> tuple[tuple[str, float], ...]:
        rows = [name for name in self.plan.outputs if name not in self.plan.sequences and name in self.plan.widths]
        if not rows or not has_labels(self.directory):
            return ()
        names = read_labels(self.directory)
        logits = outputs[rows[0]][0]
        return best_first([short(name) for name in names], logits) if len(logits) == len(names) else ()


def _named(names: tuple[str, ...], count: int) -> tuple[str, ...]:
    """The names of positions. If a node joined positions, that of the first of each group, or else their numbers."""
    names = names[:: -(-len(names) // count)] if count else names
    return names if len(names) == count else tuple(str(at + 1) for at in range(count))


def _input_of(plan: ModelPlan, site: str) -> str:
    """The input whose positions a site has."""
    node = site.partition(".")[0]
    while node not in plan.inputs:
        edges = plan.wires[node].edges
        node = (edges.get("input") or next(iter(edges.values()))).partition(".")[0]
    return node
