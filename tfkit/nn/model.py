"""A built model: token ids, images or features in, one tensor per output out; at once, or step by step (incremental decoding).

While decoding the keys and values of earlier tokens are cached, so that a step computes the new tokens only.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn

from ..attention.choice import BoundBackend
from ..cpu.packed_weight import SearchProducts, active, searching
from ..errors import Diagnostic, InputError
from ..errors.arguments import check_whole
from ..slots.lazy import load
from ..slots.processor_kernels import BeamTopK, Float32Kernel, StepRecorder
from .attention_head import AttentionHead, head_of
from .call_errors import BuiltParts, explained
from .device_moves import Placed
from .labels import Labels, by_output, loss_of, with_targets
from .layers import SharedTable, as_torch_linears
from .model_plan import ModelPlan
from .multi_head import MultiHeadAttention
from .outputs import Outputs
from .runtime.context import ForwardContext
from .runtime.decoding_state import DecodingState
from .runtime.head_columns import HeadColumns
from .runtime.inputs import check_ids, check_inputs, check_pairs, check_places, check_segments, refuse_positional, step_padding
from .runtime.node_output import NodeOutput
from .site_backends import AttentionNode, AttentionSiteUse, ResolveBackends, SiteBackends
from .tokens import TokenLogits, Tokens

MOST_POSITIONS = 2**24
"""Rows, and positions in a cache, that decoding starts with: an error comes before the memory is full."""


class GraphExecutor:
    """The nodes of a model and the plan of their edges."""

    def __init__(self, plan: ModelPlan, nodes: nn.ModuleDict) -> None:
        self.plan, self.nodes = plan, nodes

    def run(self, names: Container[str], context: ForwardContext, known: Mapping[str, NodeOutput]) -> dict[str, NodeOutput]:
        """Run the nodes `names` after the nodes whose outputs are `known`; returns the outputs of both."""
        outputs = dict(known)
        for name in self.plan.wires:
            if name in names:
                outputs[name] = self._call(name, context, outputs)
        return outputs

    def outputs(self, node_outputs: Mapping[str, NodeOutput], context: ForwardContext) -> Outputs:
        """The outputs of the model that were computed, with the attention weights that the caller wants."""
        outputs = Outputs(
            {ref: _tensor(ref, node_outputs[_node(ref)]) for ref in self.plan.outputs if _node(ref) in node_outputs}
        )
        if context.wanted:
            outputs["weights"] = context.weights
        return outputs

    def reads(self, name: str) -> set[str]:
        """The nodes whose outputs a node reads."""
        wire = self.plan.wires[name]
        return {_node(ref) for ref in (*wire.edges.values(), *wire.memories)}

    def _call(self, name: str, context: ForwardContext, outputs: Mapping[str, NodeOutput]) -> NodeOutput:
        wire = self.plan.wires[name]
        arguments: dict[str, Any] = {}
        for edge, ref in wire.edges.items():
            field, _, item = edge.partition(".")
            output = outputs[_node(ref)]
            arguments[field] = (*arguments.get(field, ()), output) if item else output
        if wire.memories:
            arguments["memories"] = {ref: outputs[_node(ref)] for ref in wire.memories}
        if wire.owner is not None:
            owner: Any = self.nodes[wire.owner]
            arguments["table"] = SharedTable(owner.embedding, None if type(owner) is Tokens else owner)
        return self.nodes[name](context, **arguments)  # type: ignore[no-any-return]


def _tensor(ref: str, output: NodeOutput) -> Tensor:
    """The output of a node; of its port `layers`, (layers + 1, B, L, M): the input of the first layer, then every output. Of a
    recurrent node, (layers, B, L, N): the outputs alone, since its input may have another width."""
    if ref == _node(ref):
        return output.tensor
    assert output.layers is not None
    return torch.stack(output.layers)


def _node(ref: str) -> str:
    """The node of a reference `node` or `node.port`."""
    return ref.split(".")[0]


@dataclass(frozen=True)
class _Decoding:
    """The start or a step of decoding, as the argument of a call of the model: so what is registered on the model (FSDP's root
    unit, offloading, hooks) acts while decoding too."""

    run: Callable[[], Any]


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
        self.beam_top_k: Sequence[BeamTopK] = ()
        self.step_recorders: Sequence[StepRecorder] = ()
        self.float32_kernels: Sequence[Float32Kernel] = ()
        self.executor = GraphExecutor(plan, self.nodes)
        self.backends = SiteBackends(self.nodes, resolve)
        self.built = BuiltParts(
            self, [name for name, rule in plan.labels.items() if rule.tokens is None and rule.kind == "here"]
        )
        for module in self.modules():
            if isinstance(module, MultiHeadAttention):
                module.weights_backend = weights_backend

    @property
    def qconfig(self) -> Any:
        """torch's eager quantisation (`quantize_dynamic`) sets this on a model, and then quantises the modules of the class
        `torch.nn.Linear` alone. So setting it makes the linear maps of the model such modules."""
        if "_qconfig" not in self.__dict__:
            raise AttributeError("qconfig")
        return self.__dict__["_qconfig"]

    @qconfig.setter
    def qconfig(self, qconfig: Any) -> None:
        as_torch_linears(self)
        self.__dict__["_qconfig"] = qconfig

    @qconfig.deleter
    def qconfig(self) -> None:
        del self.__dict__["_qconfig"]

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """As in `nn.Module`. An error that a replaced or moved part causes names that part."""
        if torch.compiler.is_compiling():
            return super().__call__(*arguments, **keywords)
        try:
            return super().__call__(*arguments, **keywords)
        except Exception as reason:
            better = explained(reason, self, self.built.shapes)
            if better is reason:
                raise
            raise better from reason

    def forward(
        self,
        *positional: Any,
        labels: Labels | None = None,
        smoothing: float = 0.0,
        masks: Mapping[str, Tensor] | None = None,
        lengths: Mapping[str, Tensor] | None = None,
        segments: Mapping[str, Tensor] | None = None,
        documents: Mapping[str, Tensor] | None = None,
        positions: Mapping[str, Tensor] | None = None,
        prefixes: Mapping[str, Tensor] | None = None,
        weights: Iterable[str] = (),
        **inputs: Tensor,
    ) -> Outputs:
        """Run the whole graph once. A decoder sees all its target tokens at once (teacher forcing).

        Args:
            positional: refused, so that the error can name the inputs.
            labels: labels of the output of logits, or labels by output; `outputs.loss` is then the mean cross-entropy over the
                labels that are not ignored. See tfkit/nn/labels.py.
            smoothing: label smoothing, from 0 to 1.
            masks: (B, L) bool by input node, True for real tokens or frames; instead of the padding that `pad_id` marks (an id
                that is also `end_id` marks none). By attention site, name or pattern (`decoder.*.self_attention`): (B, Q, K)
                bool, True for the keys that a query may see, beside what the site hides anyway.
            lengths: (B,) integers by input node, the number of real tokens or frames; padding is on the right, and kernels
                skip it.
            segments: (B, L) integers by input node, for nodes with segments (BERT's token types); 0 unless given. They hide
                nothing; `documents` do.
            documents: (B, L) integers by input node, which rise from left to right: the document of each token, for rows that
                hold several. A token sees its own document alone, in cross-attention the one of the same number, and positions
                start again at 0. Every input of the call needs them.
            positions: (B, L) integers by input node: the position of each token for the position schemes, instead of 0, 1, 2,
                ... What a causal stack or a window hides follows the order of the tokens, not these numbers.
            prefixes: (B,) integers by input node: a causal stack sees the first tokens of a row from all tokens (prefix
                language model).
            weights: sites whose attention weights to return, by name or pattern (`decoder.*.cross_attention`).
            inputs: token ids (B, L), images (B, C, H, W) or features (B, L, F) by input node.

        Returns:
            A tensor for every output of the spec; `loss` if there are labels; and for `weights`, the attention weights
            (B, H, Q, K) by site, detached. A request for weights changes no bit of the other outputs.

        Raises:
            InputError: ids, masks, lengths, segments or labels do not fit the model or each other.
        """
        if len(positional) == 1 and type(positional[0]) is _Decoding:
            return positional[0].run()  # type: ignore[no-any-return]
        refuse_positional(positional, self.plan)
        if labels is None and smoothing:
            raise InputError(
                Diagnostic("TFK073", "`smoothing` is given without `labels` and changes nothing", "give both, or neither")
            )
        by_name = {} if labels is None else by_output(labels, self.plan.labels)
        numbers = documents if isinstance(documents, Mapping) else {}
        if labels is not None:
            inputs = with_targets(by_name, inputs, self.plan.labels, self.plan.inputs, numbers)
        tables = {
            "masks": masks, "lengths": lengths, "segments": segments,
            "documents": documents, "positions": positions, "prefixes": prefixes,
        }  # fmt: skip
        context = self._context(self.plan.inputs, inputs, tables, weights)
        outputs = self.executor.outputs(self.executor.run(self.plan.wires, context, {}), context)
        if labels is not None:
            outputs["loss"] = loss_of(by_name, outputs, self.plan.labels, smoothing, numbers)
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
        target = _target_of(self.plan, inputs, target)
        others = [name for name in self.plan.inputs if name != target]

        def run() -> DecodingState:
            context = self._context(others, inputs, {"masks": masks, "lengths": lengths, "segments": segments}, ())
            rows = _batch_of(inputs, batch, capacity)
            products = active.products or SearchProducts(self.float32_kernels)
            return _start(self.executor, context, target, rows, capacity, products)

        return self(_Decoding(run))  # type: ignore[no-any-return]

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

        def run() -> Outputs:
            wanted, parameter = self._sites(weights), self._placed_parameter()
            return _step(self.executor, state, ids, visible, wanted, segments, parameter)

        return self(_Decoding(run))  # type: ignore[no-any-return]

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
            state.shares = _can_share_prefixes(self.executor, self.backends, state)
        if state.shares:
            state.branch(rows, beams, kept)
        else:
            state.reorder(rows)

    def restrict(self, state: DecodingState, output: str, ids: Int[Tensor, " ids"]) -> None:
        """Compute the logits of some ids only, in the steps that follow: a product with these rows of the weight.

        Args:
            state: the decoding state.
            output: the output of logits, whose columns are then these ids.
            ids: (C,) integers.

        Raises:
            InputError: the output is not that of a node `token_logits`.
        """
        head = dict(self.nodes.items()).get(output)
        if not isinstance(head, TokenLogits):
            message = f"the logits of some ids only are wanted, and `{output}` is no `token_logits`"
            raise InputError(Diagnostic("TFK077", message, "leave the shortlist out"))
        state.columns = HeadColumns(head, ids)

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
        self.backends.set({use.site: backend for use in self.backends.uses() if use.site in chosen})

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

    def parameter_count(self, trainable: bool = True) -> int:
        """The number of parameters. A shared parameter counts once.

        Args:
            trainable: count the trainable parameters; False counts the frozen ones.

        Returns:
            The number of elements of these parameters.
        """
        return sum(parameter.numel() for parameter in self.parameters() if parameter.requires_grad is trainable)

    def _sites(self, patterns: Iterable[str]) -> frozenset[str]:
        return self.backends.matching(patterns) if patterns else frozenset()

    def _placed_parameter(self) -> nn.Parameter | None:
        """A parameter whose device the inputs must be on; None if parameters are elsewhere until they are used. Offloading
        keeps them on the meta device, and replaces the `forward` of modules by one that loads them."""
        parameter = next(self.parameters(), None)
        if parameter is not None and parameter.is_meta and any("forward" in module.__dict__ for module in self.modules()):
            return None
        return parameter

    def _repr_html_(self) -> str:
        return load("tfkit.view.drawing.page:model_html")(self.spec)  # type: ignore[no-any-return]

    def _context(
        self,
        wanted: Iterable[str],
        inputs: Mapping[str, Tensor],
        tables: Mapping[str, Mapping[str, Tensor] | None],
        weights: Iterable[str],
    ) -> ForwardContext:
        if not torch.compiler.is_compiling():
            for children, name, child in self.built.children:
                if children.get(name) is not child:
                    self.built.check(self)
                    break
        extra = {label: table for label, table in tables.items() if table is not None}
        pairs: dict[str, Tensor] = {}
        if isinstance(masks := extra.get("masks"), Mapping):
            of_sites = {name: mask for name, mask in masks.items() if isinstance(name, str) and ("." in name or "*" in name)}
            extra["masks"] = {name: mask for name, mask in masks.items() if name not in of_sites}
            for pattern, mask in of_sites.items():
                if len(inputs) < len(self.plan.inputs):
                    message = f"decoding starts with a mask of `{pattern}`, which its steps would not have"
                    raise InputError(Diagnostic("TFK073", message, "give masks of attention sites to a call of the model"))
                check_pairs(pattern, mask, inputs, self._placed_parameter())
                sites = self._sites([pattern])
                if twice := sites & pairs.keys():
                    message = f"`{min(twice)}` has two masks, one of them by `{pattern}`"
                    raise InputError(Diagnostic("TFK073", message, "give one mask for each site"))
                pairs |= dict.fromkeys(sites, mask)
        padding = check_inputs(self.plan, wanted, inputs, extra, self._placed_parameter())
        return ForwardContext(dict(inputs), padding, dict(extra.get("segments", {})), wanted=self._sites(weights), pairs=pairs)


def _target_of(plan: ModelPlan, inputs: Mapping[str, Tensor], target: str | None) -> str:
    """The input node to decode: `target`, or the only one that is not given.

    Raises:
        InputError: not exactly one input is left, or it cannot be decoded step by step.
    """
    missing = [name for name in plan.inputs if name not in inputs]
    target = target or (missing[0] if len(missing) == 1 else "")
    if missing != [target]:
        message = (
            f"inputs given: {', '.join(inputs) or 'none'}; of the inputs {', '.join(plan.inputs)} one must be left to decode"
        )
        raise InputError(Diagnostic("TFK073", message))
    if reason := plan.undecodable.get(target):
        raise InputError(Diagnostic("TFK075", f"`{target}` cannot be decoded step by step: {reason}"))
    return target


def _batch_of(inputs: Mapping[str, Tensor], batch: int | None, capacity: int) -> int:
    """The number of rows to decode: that of the inputs, or `batch` for a model without another input.

    Raises:
        InputError: the number is missing, below 1 or not that of the inputs; or the capacity is below 1.
    """
    check_whole("capacity", capacity, 1, MOST_POSITIONS, "TFK073")
    if batch is not None:
        check_whole("batch", batch, 1, MOST_POSITIONS, "TFK070")
    rows = next((ids.shape[0] for ids in inputs.values()), batch)
    if rows is None:
        raise InputError(Diagnostic("TFK073", "a model without another input needs `batch`", "start(batch=...)"))
    if batch not in (None, rows):
        raise InputError(Diagnostic("TFK070", f"`batch` is {batch}, the inputs have {rows} rows", "leave `batch` out"))
    return rows


def _start(
    executor: GraphExecutor, context: ForwardContext, target: str, batch: int, capacity: int, products: SearchProducts
) -> DecodingState:
    """Run every node that does not depend on `target`, and keep the outputs that the other nodes read."""
    state = DecodingState(target, batch, capacity, products=products)
    following = executor.plan.followers[target]
    before = [name for name in executor.plan.wires if name not in following]
    with searching(products):
        node_outputs = executor.run(before, context, {})
    still_read = set().union(*(executor.reads(name) for name in following))
    state.node_outputs.update({name: output for name, output in node_outputs.items() if name in still_read})
    return state


def _step(
    executor: GraphExecutor,
    state: DecodingState,
    ids: Tensor,
    visible: Tensor | Literal[True] | None,
    wanted: frozenset[str],
    segments: Tensor | None,
    parameter: nn.Parameter | None,
) -> Outputs:
    """Run the nodes that depend on the target for its next ids (B, n); see `Model.step`."""
    target, rule = state.target, executor.plan.token_rule(state.target)
    check_ids(target, ids, rule.vocab_size)
    check_places(parameter, {f"`{target}`": ids})
    if ids.shape[0] != state.batch:
        message = f"`{target}` has shape {tuple(ids.shape)}, but the decoding state has {state.batch} rows"
        raise InputError(Diagnostic("TFK070", message))
    if state.tree is not None and ids.shape[1] != 1:
        message = f"`{target}` has shape {tuple(ids.shape)}, but beams that share prefixes grow by one token"
        raise InputError(Diagnostic("TFK070", message, "give ids (rows, 1) after `branch`"))
    padding = step_padding(state, ids, visible, rule)
    if segments is not None:
        check_segments(target, segments, ids, rule.segments)
    own_segments = {} if segments is None else {target: segments}
    context = ForwardContext({target: ids}, {target: padding}, own_segments, state, wanted)
    following = executor.plan.followers[target]
    with searching(state.products):
        node_outputs = executor.run(following, context, state.node_outputs)
    state.remember(ids, None if padding.visible is None else padding.visible[:, state.length :])
    return executor.outputs({name: node_outputs[name] for name in following}, context)


def _can_share_prefixes(executor: GraphExecutor, backends: SiteBackends, state: DecodingState) -> bool:
    """Whether beams may share the rows of their sentence.

    A memory then has one row per sentence and the sequence one per beam, so only attention sites may read the memory. Every
    site with a cache needs a backend that supports the mask of the beams.
    """
    for name in executor.plan.followers[state.target]:
        node = executor.nodes[name]
        only_attended = isinstance(node, AttentionNode) and node.memory_only_attended
        if not only_attended and executor.reads(name) & state.node_outputs.keys():
            return False
    uses = {use.site: use for use in backends.uses()}
    return all(
        site in uses and uses[site].attention.supports_tree_attention(uses[site].application, cache)
        for site, cache in state.caches.items()
    )
