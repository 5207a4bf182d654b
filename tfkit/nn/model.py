"""A built model: its nodes in an order in which each finds its inputs made."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn

from ..attention.choice import BackendChoice, BoundBackend
from ..errors import BackendRefused, Diagnostic, InputError
from ..slots.node import InputRule
from .cpu.malloc import raise_malloc_trim_threshold
from .cpu.prepacked import PrepackedWeights
from .device_moves import Placed
from .labels import Labels, by_output, loss_of, with_targets
from .model_plan import ModelPlan
from .multi_head import MultiHeadAttention
from .outputs import Outputs
from .runtime.context import ForwardContext
from .runtime.decoding_state import DecodingState
from .runtime.input_checks import check_ids, check_places, check_segments, check_tensor, given_padding
from .runtime.node_output import NodeOutput, Padding
from .stack import Stack
from .tokens import padding_of


class BackendResolution(Protocol):
    """Makes the backend choice of a site from a wish, for the device and dtype it stands for; `on` gives one for others."""

    def __call__(self, site: str, requested: Any) -> BackendChoice: ...

    def on(self, device: torch.device, dtype: torch.dtype) -> BackendResolution: ...


class Model(Placed):
    """`model(source=ids, target=ids).logits`: one keyword for every input node, one entry for every output.

    Built by `tfkit.build`; its parameters are named by the structure of the spec, whatever the backends. `spec` is the spec
    that it was built from, kept so that it can be saved.
    """

    accepts_loss_kwargs = False
    """Said to Hugging Face's Trainer, which would take `**inputs` for its own keywords."""

    def __init__(
        self, plan: ModelPlan, nodes: Mapping[str, nn.Module], rebind: BackendResolution, weights_backend: BoundBackend
    ) -> None:
        super().__init__()
        self.plan = plan
        self.nodes = nn.ModuleDict(nodes)
        self.spec: Any = None
        self._rebind = rebind
        self.prepacked: PrepackedWeights | None = None
        for attention in self._attentions():
            attention.weights_backend = weights_backend

    def forward(
        self,
        *,
        labels: Labels | None = None,
        smoothing: float = 0.0,
        masks: Mapping[str, Tensor] | None = None,
        lengths: Mapping[str, Tensor] | None = None,
        segments: Mapping[str, Tensor] | None = None,
        weights: Iterable[str] = (),
        **inputs: Tensor,
    ) -> Outputs:
        """Run the whole graph once; a decoder sees all its target tokens at once (teacher forcing).

        inputs    token ids (B, L) by input node
        masks     (B, L) bool by input node, True for real tokens; instead of what `pad_id` tells
        lengths   (B,) integers by input node: as many real tokens, padding on the right; lets kernels skip it
        segments  (B, L) integers by input node, for nodes with segments (BERT's token types); segment 0 unless given
        weights   sites (`decoder.0.cross_attention`, or a pattern such as `decoder.*.cross_attention`) whose attention
                  weights (B, H, Q, K) come back as `outputs["weights"][site]`, detached; nothing else changes by a bit
        labels    of the output that is logits, or by output: `outputs.loss` is the mean cross-entropy of those that count, with
                  label `smoothing`. What labels are for each kind of model: tfkit/nn/labels.py

        Gives a tensor for every output of the spec. Raises InputError for ids, masks, lengths and labels that do not fit.
        """
        if labels is None and smoothing:
            raise InputError(
                Diagnostic("TFK073", "`smoothing` is given without `labels` and changes nothing", "give both, or neither")
            )
        answers = {} if labels is None else by_output(labels, self.plan.labels)
        inputs = with_targets(answers, inputs, self.plan.labels, self.plan.inputs)
        context = self._run(inputs, masks or {}, lengths or {}, segments or {}, weights)
        node_outputs: dict[str, NodeOutput] = {}
        for name in self.plan.wires:
            node_outputs[name] = self._call(name, context, node_outputs)
        outputs = Outputs({name: node_outputs[name].tensor for name in self.plan.outputs})
        if context.wanted:
            outputs["weights"] = context.weights
        if labels is not None:
            outputs["loss"] = loss_of(answers, outputs, self.plan.labels, smoothing)
        return outputs

    @torch.no_grad()
    def start(
        self,
        target: str | None = None,
        /,
        *,
        batch: int | None = None,
        capacity: int = 64,
        masks: Mapping[str, Tensor] | None = None,
        lengths: Mapping[str, Tensor] | None = None,
        segments: Mapping[str, Tensor] | None = None,
        **inputs: Tensor,
    ) -> DecodingState:
        """Begin incremental decoding of the input node `target` (the one not given), running everything else once.

        `capacity` is the number of positions to reserve (more are taken when needed). A decoder-only model needs `batch`.
        Raises InputError for inputs that do not fit, and where the target cannot be decoded step by step.
        """
        missing = [name for name in self.plan.inputs if name not in inputs]
        target = target or (missing[0] if len(missing) == 1 else "")
        if missing != [target]:
            given = ", ".join(inputs) or "none"
            raise InputError(
                Diagnostic(
                    "TFK073", f"inputs given: {given}; of the inputs {', '.join(self.plan.inputs)} one must be left to decode"
                )
            )
        reason = self.plan.undecodable.get(target)
        if reason:
            raise InputError(Diagnostic("TFK075", f"`{target}` cannot be decoded step by step: {reason}"))
        context = self._run(inputs, masks or {}, lengths or {}, segments or {}, (), skip=target)
        if capacity < 1:
            raise InputError(Diagnostic("TFK073", f"capacity is {capacity}", "reserve at least one position"))
        rows = next((ids.shape[0] for ids in inputs.values()), batch)
        if rows is None:
            raise InputError(Diagnostic("TFK073", "a model without another input needs `batch`", "start(batch=...)"))
        if rows < 1 or batch not in (None, rows):
            raise InputError(Diagnostic("TFK070", f"`batch` is {batch}, the inputs have {rows} rows", "leave `batch` out"))
        batch = rows
        raise_malloc_trim_threshold()
        state = DecodingState(target, batch, capacity, prepacked=self.prepacked or PrepackedWeights())
        context.prepacked = state.prepacked
        node_outputs: dict[str, NodeOutput] = {}
        for name in self.plan.wires:
            if name not in self.plan.followers[target]:
                node_outputs[name] = self._call(name, context, node_outputs)
        read = {self._base(ref) for name in self.plan.followers[target] for ref in self._reads(name)}
        state.node_outputs.update({name: node_output for name, node_output in node_outputs.items() if name in read})
        return state

    @torch.no_grad()
    def step(
        self,
        state: DecodingState,
        ids: Tensor,
        visible: Tensor | Literal[True] | None = None,
        weights: Iterable[str] = (),
        segments: Tensor | None = None,
    ) -> Outputs:
        """Decode the next `ids` (B, n), n >= 1; gives the outputs that follow the target, for these n positions only.

        `visible` (B, n) bool marks those that are no padding, True stands for all of them; without it `pad_id` tells. Where
        the start token has the id of padding, rows padded on the left need `visible`: the first of their pads looks like a
        start until more is known. `segments` (B, n) are those of the target, segment 0 unless given.
        """
        target, rule = state.target, self.plan.inputs[state.target]
        check_ids(target, ids, rule.vocab_size)
        check_places(next(self.parameters(), None), {f"`{target}`": ids})
        if ids.shape[0] != state.batch:
            message = f"`{target}` has shape {tuple(ids.shape)}, but the decoding state has {state.batch} rows"
            raise InputError(Diagnostic("TFK070", message))
        if state.tree is not None and ids.shape[1] != 1:
            message = f"`{target}` has shape {tuple(ids.shape)}, but hypotheses that share their beginnings grow by one token"
            raise InputError(Diagnostic("TFK070", message, "give ids (rows, 1) after `branch`"))
        padding = self._step_padding(state, ids, visible, rule)
        if segments is not None:
            check_segments(target, segments, ids, rule.segments)
        said = {} if segments is None else {target: segments}
        context = ForwardContext({target: ids}, {target: padding}, said, state, self._sites(weights), prepacked=state.prepacked)
        node_outputs: dict[str, NodeOutput] = dict(state.node_outputs)  # type: ignore[arg-type]
        for name in self.plan.wires:
            if name in self.plan.followers[target]:
                node_outputs[name] = self._call(name, context, node_outputs)
        new = None if padding.visible is None else padding.visible[:, state.length :]
        state.remember(ids, new)
        outputs = Outputs({name: node_outputs[name].tensor for name in self.plan.outputs if name in node_outputs})
        if context.wanted:
            outputs["weights"] = context.weights
        return outputs

    def branch(self, state: DecodingState, rows: Tensor, beams: int, kept: Tensor | None = None) -> None:
        """Go on with `beams` hypotheses for every sentence of a decoding state. In the first call each row of the state is a
        sentence; after it, rows s * beams to s * beams + beams - 1 are the hypotheses of sentence s.

        rows    (S' * beams,) integers: the row of now that each continues, those of one sentence together
        kept    (S',) integers: the sentences that go on, rising; None for all

        Beginnings that hypotheses have in common are stored once, and so is all that a sentence's memory has to offer, wherever
        the attention backends and the nodes of the model allow it; elsewhere every hypothesis has copies of its own.
        """
        if state.shares is None:
            state.shares = self._can_share(state)
        if state.shares:
            state.branch(rows, beams, kept)
        else:
            state.reorder(rows)

    def _can_share(self, state: DecodingState) -> bool:
        """Only stacks may read what was run once, which then has fewer rows; and every site's backend has to take the mask."""
        for name in self.plan.followers[state.target]:
            if not isinstance(self.nodes[name], Stack) and any(
                self._base(ref) in state.node_outputs for ref in self._reads(name)
            ):
                return False
        sites = {site: (attention, index) for attention, index, site in self._site_table()}
        return all(
            site in sites and sites[site][0].supports_tree_attention(sites[site][1], cache)
            for site, cache in state.caches.items()
        )

    def set_backend(self, backend: Any, sites: str | Iterable[str] = "*") -> None:
        """Use another attention backend at the sites that match: a name, `{"kind": ..., options}`, `"auto"`, or a list.

        Raises BackendRefused, and changes nothing, where it can never serve a site, for all sites in one message; SpecError
        where it names no backend. Weights are untouched.
        """
        chosen = self._sites([sites] if isinstance(sites, str) else sites)
        first = next(self.parameters(), None)  # the model may have been moved or cast since it was built
        rebind = self._rebind if first is None else self._rebind.on(first.device, first.dtype)
        self._bind({site: backend for site in self.sites if site in chosen}, rebind)

    def retarget(self, device: torch.device, dtype: torch.dtype) -> None:
        """Decide the backends of every site anew, for another device or dtype; wishes stay as they are."""
        rebind = self._rebind.on(device, dtype)
        self._bind(self.requested_backends, rebind)
        self._rebind = rebind

    def _bind(self, requested_backends: Mapping[str, Any], rebind: BackendResolution) -> None:
        made: dict[str, BackendChoice] = {}
        refused: list[Diagnostic] = []
        for site, requested in requested_backends.items():
            try:
                made[site] = rebind(site, requested)
            except BackendRefused as refusal:
                refused += refusal.diagnostics
        if refused:
            raise BackendRefused(refused)
        for attention, index, site in self._site_table():
            if site in made:
                attention.choices[index] = made[site]

    @property
    def requested_backends(self) -> dict[str, list[Any]]:
        """Every attention site with the backends that were asked for there, as a spec writes them."""
        return {site: attention.choices[index].requested_backends for attention, index, site in self._site_table()}

    @property
    def sites(self) -> dict[str, str]:
        """Every attention site with the backend that was asked for there."""
        return {site: attention.choices[index].requested for attention, index, site in self._site_table()}

    @property
    def memory_sites(self) -> frozenset[str]:
        """The attention sites that read a memory: their keys are not the tokens of their own stack."""
        return frozenset(site for attention, _, site in self._site_table() if attention.rule.cross)

    def not_thread_safe(self, device: str) -> list[str]:
        """The attention backends on a device that do not say that several threads may call them, and so the model, at once."""
        choices = (choice for attention in self._attentions() for choice in attention.choices.values())
        return sorted({name for choice in choices for name in choice.not_thread_safe(device)})

    @contextmanager
    def shared_prepacked(self, prepacked: PrepackedWeights) -> Iterator[None]:
        """Searches that begin inside this block share `prepacked`; otherwise each search has its own."""
        before, self.prepacked = self.prepacked, prepacked
        try:
            yield
        finally:
            self.prepacked = before

    def parameter_count(self, trainable: bool = True) -> int:
        """The number of trainable (or frozen) parameters, each shared one counted once."""
        return sum(parameter.numel() for parameter in self.parameters() if parameter.requires_grad is trainable)

    def _call(self, name: str, context: ForwardContext, node_outputs: Mapping[str, NodeOutput]) -> NodeOutput:
        wire = self.plan.wires[name]
        arguments: dict[str, Any] = {edge: node_outputs[self._base(ref)] for edge, ref in wire.edges.items()}
        if wire.memories:
            arguments["memories"] = {ref: node_outputs[self._base(ref)] for ref in wire.memories}
        if wire.owner is not None:
            arguments["table"] = self.nodes[wire.owner].table()  # type: ignore[operator]
        return self.nodes[name](context, **arguments)  # type: ignore[no-any-return]

    def _run(
        self,
        inputs: Mapping[str, Tensor],
        masks: Mapping[str, Tensor],
        lengths: Mapping[str, Tensor],
        segments: Mapping[str, Tensor],
        weights: Iterable[str],
        skip: str | None = None,
    ) -> ForwardContext:
        wanted = [name for name in self.plan.inputs if name != skip]
        if set(inputs) != set(wanted):
            missing = [name for name in wanted if name not in inputs]
            unknown = [name for name in inputs if name not in wanted]
            message = f"missing inputs: {', '.join(missing) or 'none'}; unknown inputs: {', '.join(unknown) or 'none'}"
            raise InputError(Diagnostic("TFK073", message, f"`{self.plan.name}` takes {', '.join(wanted)}"))
        for label, table in (("masks", masks), ("lengths", lengths), ("segments", segments)):
            for name in table:
                if name not in inputs:
                    raise InputError(Diagnostic("TFK073", f"{label} name `{name}`, which is no input of this call"))
        placed = {f"`{name}`": ids for name, ids in inputs.items()}
        for label, table in (("mask", masks), ("lengths", lengths), ("segments", segments)):
            placed.update({f"{label} of `{name}`": given for name, given in table.items()})
        check_places(next(self.parameters(), None), placed)
        batch = None
        for name, ids in inputs.items():
            check_ids(name, ids, self.plan.inputs[name].vocab_size)
            if batch is not None and ids.shape[0] != batch[1]:
                message = f"`{name}` has {ids.shape[0]} rows, `{batch[0]}` has {batch[1]}"
                raise InputError(Diagnostic("TFK070", message, "all inputs of one call have the same batch size"))
            batch = batch or (name, ids.shape[0])
        padding = {name: self._padding(name, ids, masks.get(name), lengths.get(name)) for name, ids in inputs.items()}
        for name, segment in segments.items():
            check_segments(name, segment, inputs[name], self.plan.inputs[name].segments)
        return ForwardContext(dict(inputs), padding, dict(segments), wanted=self._sites(weights))

    def _padding(self, name: str, ids: Tensor, mask: Tensor | None, lengths: Tensor | None) -> Padding:
        rule = self.plan.inputs[name]
        given = given_padding(name, ids, mask, lengths)
        return padding_of(ids, rule.pad_id, rule.start_id) if given is None else given

    def _step_padding(
        self, state: DecodingState, ids: Tensor, visible: Tensor | Literal[True] | None, rule: InputRule
    ) -> Padding:
        if visible is not None and visible is not True:
            check_tensor("`visible`", visible)
        if isinstance(visible, Tensor) and (visible.dtype is not torch.bool or visible.shape != ids.shape):
            message = f"`visible` is {visible.dtype} {tuple(visible.shape)}, the ids are {tuple(ids.shape)}"
            raise InputError(Diagnostic("TFK070", message, "it is bool, True for real tokens, of the ids' shape"))
        if visible is None and rule.pad_id is not None:
            whole = ids if state.ids is None else torch.cat([state.ids, ids], 1)
            told = padding_of(whole, rule.pad_id, rule.start_id).as_visible(whole.shape[1])
            visible = None if told is None else told[:, state.length :]
        if state.visible is None and (not isinstance(visible, Tensor) or bool(visible.all())):
            return Padding()
        everything = torch.ones(state.batch, state.length + ids.shape[1], dtype=torch.bool, device=ids.device)
        before = everything[:, : state.length] if state.visible is None else state.visible
        now = visible if isinstance(visible, Tensor) else everything[:, state.length :]
        return Padding(visible=torch.cat([before, now], 1))

    def _sites(self, patterns: Iterable[str]) -> frozenset[str]:
        patterns = [patterns] if isinstance(patterns, str) else list(patterns)
        if not patterns:
            return frozenset()
        known = list(self.sites)
        found: set[str] = set()
        for pattern in patterns:
            matching = [site for site in known if _matches(site, pattern)]
            if not matching:
                message = f"`{pattern}` matches no attention site"
                raise InputError(
                    Diagnostic("TFK076", message, f"sites: {', '.join(known[:6])}{', ...' if len(known) > 6 else ''}")
                )
            found.update(matching)
        return frozenset(found)

    def _reads(self, name: str) -> list[str]:
        wire = self.plan.wires[name]
        return [*wire.edges.values(), *wire.memories]

    @staticmethod
    def _base(ref: str) -> str:
        return ref.split(".")[0]

    def _attentions(self) -> list[MultiHeadAttention]:
        return [module for module in self.modules() if isinstance(module, MultiHeadAttention)]

    def _site_table(self) -> list[tuple[MultiHeadAttention, int, str]]:
        table = []
        for stack in self.nodes.values():
            if not isinstance(stack, Stack):
                continue
            for index, number in enumerate(stack.order):
                for module in stack.layers[number].modules():
                    if isinstance(module, MultiHeadAttention):
                        table.append((module, index, f"{stack.name}.{index}.{module.name}"))
        return table


def _matches(site: str, pattern: str) -> bool:
    """Whether a pattern, in which `*` stands for any text, is the name of a site. Dynamo cannot trace `fnmatch`."""
    first, *rest = pattern.split("*")
    if not rest:
        return site == pattern
    *middle, last = rest
    if not site.startswith(first) or not site[len(first) :].endswith(last):
        return False
    site = site[len(first) : len(site) - len(last)]
    for piece in middle:
        at = site.find(piece)
        if at < 0:
            return False
        site = site[at + len(piece) :]
    return True
