"""A built model: token ids, images or features in, one tensor per output out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn

from ..attention.choice import BoundBackend
from ..errors import Diagnostic, InputError
from ..slots.beam_top_k import BeamTopK
from ..slots.float32_kernel import Float32Kernel
from ..slots.lazy import load
from . import incremental
from .attention_head import AttentionHead, head_of
from .cpu.float32 import float32_kernel_here
from .cpu.malloc import keep_freed_memory
from .cpu.prepacked import PrepackedWeights
from .device_moves import Placed
from .graph_execution import GraphExecutor
from .labels import Labels, by_output, loss_of, with_targets
from .model_plan import ModelPlan
from .multi_head import MultiHeadAttention
from .outputs import Outputs
from .runtime.context import ForwardContext
from .runtime.decoding_state import DecodingState
from .runtime.model_inputs import check_inputs, refuse_positional
from .site_backends import AttentionSiteUse, ResolveBackends, SiteBackends


class Model(Placed):
    """`model(source=ids, target=ids).logits`: one keyword per input node, one entry per output.

    `tfkit.build` makes it. Parameter names depend on the structure of the spec, never on the backends. `spec` is the spec it
    was built from; `tfkit.save` needs it. `precision` is that of its linear maps (precision.py); `beam_top_k` are the installed
    kernels for beam search.

    Args:
        plan: the edges, inputs and outputs of the graph.
        nodes: the module of every node.
        resolve: chooses backends for sites.
        weights_backend: the backend that computes attention weights on request.
    """

    accepts_loss_kwargs = False
    """Hugging Face's Trainer reads this: it then passes no keyword arguments of its loss to `forward`."""

    def __init__(
        self, plan: ModelPlan, nodes: Mapping[str, nn.Module], resolve: ResolveBackends, weights_backend: BoundBackend
    ) -> None:
        super().__init__()
        self.plan = plan
        self.nodes = nn.ModuleDict(nodes)
        self.spec: Any = None
        self.precision = "float32"
        self.prepacked: PrepackedWeights | None = None
        self.beam_top_k: Sequence[BeamTopK] = ()
        self.float32_kernels: Sequence[Float32Kernel] = ()
        self.executor = GraphExecutor(plan, self.nodes)
        self.backends = SiteBackends(self.nodes, resolve)
        for module in self.modules():
            if isinstance(module, MultiHeadAttention):
                module.weights_backend = weights_backend

    def forward(
        self,
        *positional: Any,
        labels: Labels | None = None,
        smoothing: float = 0.0,
        masks: Mapping[str, Tensor] | None = None,
        lengths: Mapping[str, Tensor] | None = None,
        segments: Mapping[str, Tensor] | None = None,
        weights: Iterable[str] = (),
        **inputs: Tensor,
    ) -> Outputs:
        """Run the whole graph once. A decoder sees all its target tokens at once (teacher forcing).

        Args:
            positional: refused, so that the error can name the inputs.
            labels: labels of the output of logits, or labels by output; `outputs.loss` is then the mean cross-entropy over the
                labels that are not ignored. See tfkit/nn/labels.py.
            smoothing: label smoothing, from 0 to 1.
            masks: (B, L) bool by input node, True for real tokens or frames; instead of the padding that `pad_id` marks.
            lengths: (B,) integers by input node, the number of real tokens or frames; padding is on the right, and kernels
                skip it.
            segments: (B, L) integers by input node, for nodes with segments (BERT's token types); 0 unless given. They hide
                nothing: a row holds one document.
            weights: sites whose attention weights to return, by name or pattern (`decoder.*.cross_attention`).
            inputs: token ids (B, L), images (B, C, H, W) or features (B, L, F) by input node.

        Returns:
            A tensor for every output of the spec; `loss` if there are labels; and for `weights`, the attention weights
            (B, H, Q, K) by site, detached. A request for weights changes no bit of the other outputs.

        Raises:
            InputError: ids, masks, lengths, segments or labels do not fit the model or each other.
        """
        refuse_positional(positional, self.plan)
        if labels is None and smoothing:
            raise InputError(
                Diagnostic("TFK073", "`smoothing` is given without `labels` and changes nothing", "give both, or neither")
            )
        by_name = {} if labels is None else by_output(labels, self.plan.labels)
        inputs = with_targets(by_name, inputs, self.plan.labels, self.plan.inputs)
        context = self._context(self.plan.inputs, inputs, masks, lengths, segments, weights)
        outputs = self.executor.outputs(self.executor.run(self.plan.wires, context, {}), context)
        if labels is not None:
            outputs["loss"] = loss_of(by_name, outputs, self.plan.labels, smoothing)
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
        """Start incremental decoding: run every node that does not depend on the target (the encoder).

        Args:
            target: the input node to decode, by default the only one that is not given.
            batch: number of rows; only for a model without another input.
            capacity: number of positions to reserve in the caches, which grow when needed.
            masks: as in `forward`.
            lengths: as in `forward`.
            segments: as in `forward`.
            inputs: every other input node, as in `forward`.

        Returns:
            The decoding state, to which no token was given yet.

        Raises:
            InputError: the inputs do not fit, or the target cannot be decoded step by step.
        """
        target = incremental.target_of(self.plan, inputs, target)
        others = [name for name in self.plan.inputs if name != target]
        context = self._context(others, inputs, masks, lengths, segments, ())
        batch = incremental.batch_of(inputs, batch, capacity)
        keep_freed_memory()
        return incremental.start(self.executor, context, target, batch, capacity, self.prepacked or self.new_prepacked())

    @torch.no_grad()
    def step(
        self,
        state: DecodingState,
        ids: Int[Tensor, "B n"],
        visible: Bool[Tensor, "B n"] | Literal[True] | None = None,
        weights: Iterable[str] = (),
        segments: Int[Tensor, "B n"] | None = None,
    ) -> Outputs:
        """Decode the next tokens of the target.

        Args:
            state: the decoding state, updated in place.
            ids: (B, n) the next token ids, n >= 1.
            visible: (B, n) bool, False for padding; True if no token is padding; by default `pad_id` marks padding. If the
                start token and padding have the same id, rows that are padded on the left need `visible`: a single pad looks
                like a start token.
            weights: sites whose attention weights to return, as in `forward`.
            segments: (B, n) segments of the new tokens, 0 unless given.

        Returns:
            The outputs that depend on the target, for the n new positions.

        Raises:
            InputError: the ids do not fit the model or the decoding state.
        """
        parameter = next(self.parameters(), None)
        return incremental.step(self.executor, state, ids, visible, self.backends.matching(weights), segments, parameter)

    def branch(
        self, state: DecodingState, rows: Int[Tensor, " rows"], beams: int, kept: Int[Tensor, " kept"] | None = None
    ) -> None:
        """Continue with `beams` hypotheses per sentence.

        In the first call every row of the state is a sentence. Afterwards rows s * beams to s * beams + beams - 1 are the
        hypotheses of sentence s. The hypotheses of a sentence share the keys and values of common prefixes and of the memory
        if the backends and nodes of the model allow it; otherwise each has copies.

        Args:
            state: the decoding state, updated in place.
            rows: (S' * beams,) integers, the current row that each hypothesis continues; a sentence's hypotheses are adjacent.
            beams: hypotheses per sentence.
            kept: (S',) integers, the sentences that continue, in increasing order; None for all.
        """
        if state.shares is None:
            state.shares = incremental.can_share_prefixes(self.executor, self.backends, state)
        if state.shares:
            state.branch(rows, beams, kept)
        else:
            state.reorder(rows)

    def set_backend(self, backend: Any, sites: str | Iterable[str] = "*") -> None:
        """Use another attention backend at the sites that match. Weights stay, and an error changes nothing.

        Args:
            backend: a name, `{"kind": ..., options}`, `"auto"`, or a list of these.
            sites: names of sites or patterns such as `decoder.*`.

        Raises:
            BackendRefused: the backend can serve a site on no device; the message names all such sites. A call is refused if it
                cannot serve the site on the device of the call.
            SpecError: there is no such backend.
        """
        chosen = self.backends.matching(sites)
        self.backends.set({site: backend for site in self.sites if site in chosen})

    def retarget(self, device: torch.device, dtype: torch.dtype) -> None:
        """Check now what the first call would check: that every site has a backend on a device in a dtype.

        Every call chooses anew for its device and dtype, so a model that moves needs no `retarget`.

        Args:
            device: the device of the next calls.
            dtype: the dtype of queries, keys and values.

        Raises:
            BackendRefused: no requested backend of a site can serve it on this device.
        """
        self.backends.set(self.requested_backends, device, dtype)

    def attention_sites(self) -> list[AttentionSiteUse]:
        """All attention sites.

        Returns:
            By site, in order: the module, the index of its application in the stack, and the name of the site.
        """
        return self.backends.uses()

    def head(self, site: str, head: int) -> AttentionHead:
        """The matrices of one attention head: `model.head("encoder.0.self_attention", 3).query` is (D, M).

        Args:
            site: an attention site.
            head: the query head, from 0.

        Returns:
            Views into the parameters of all heads; with grouped heads, `key` and `value` are those that this head reads.

        Raises:
            InputError: there is no such site or head, or the site has no projections.
        """
        return head_of(self.backends.attention(site), site, head)

    @property
    def requested_backends(self) -> dict[str, list[Any]]:
        """The requested backends of every attention site, as a spec writes them."""
        return {site: choice.requested_backends for site, choice in self.backends.choices().items()}

    @property
    def sites(self) -> dict[str, str]:
        """The requested backend of every attention site, by name."""
        return {site: choice.requested for site, choice in self.backends.choices().items()}

    @property
    def memory_sites(self) -> frozenset[str]:
        """The cross-attention sites. Their keys are not the tokens of their own stack."""
        return frozenset(site for attention, _, site in self.backends.uses() if attention.config.cross)

    def not_thread_safe(self, device: str) -> list[str]:
        """The backends in use that only one thread may call at a time.

        Args:
            device: the kind of device of the calls, such as "cpu".

        Returns:
            The names of the backends, sorted.
        """
        return self.backends.not_thread_safe(device)

    def new_prepacked(self) -> PrepackedWeights:
        """Packed weights for searches, none yet, in the layout of the fastest installed kernel.

        Returns:
            What `shared_prepacked` takes.
        """
        return PrepackedWeights(float32_kernel_here(self.float32_kernels))

    @contextmanager
    def shared_prepacked(self, prepacked: PrepackedWeights) -> Iterator[None]:
        """A context in which all searches share `prepacked`. Otherwise each search prepacks its own weights.

        Args:
            prepacked: the packed weights to share.

        Returns:
            The context manager.
        """
        before, self.prepacked = self.prepacked, prepacked
        try:
            yield
        finally:
            self.prepacked = before

    def parameter_count(self, trainable: bool = True) -> int:
        """The number of parameters. A shared parameter counts once.

        Args:
            trainable: count the trainable parameters; False counts the frozen ones.

        Returns:
            The number of elements of these parameters.
        """
        return sum(parameter.numel() for parameter in self.parameters() if parameter.requires_grad is trainable)

    def _repr_html_(self) -> str:
        return load("tfkit.view.drawing.notebook:model_html")(self.spec)  # type: ignore[no-any-return]

    def _context(
        self,
        wanted: Iterable[str],
        inputs: Mapping[str, Tensor],
        masks: Mapping[str, Tensor] | None,
        lengths: Mapping[str, Tensor] | None,
        segments: Mapping[str, Tensor] | None,
        weights: Iterable[str],
    ) -> ForwardContext:
        segments = segments or {}
        parameter = next(self.parameters(), None)
        padding = check_inputs(self.plan, wanted, inputs, masks or {}, lengths or {}, segments, parameter)
        return ForwardContext(dict(inputs), padding, dict(segments), wanted=self.backends.matching(weights))
