"""The variables of the template of a stack: its layers, their order, masks and positions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from ...slots.layer import Layer, leaves, sequence
from ...slots.node import NodeContext
from ...slots.options import Component
from .attention_view import ATTENTION, AttentionPlace, AttentionView, Use, use_of
from .node_view import memory_variable
from .source_file import BoundPart, Refused, SourceFile, render

LAYER = Path(__file__).with_name("layer.py.jinja")


class SublayerView:
    """One sub-layer of a layer, of this kind and with these options."""

    def __init__(self, layer: LayerView, component: Component) -> None:
        from ...builtin.node.stack_entry import memory_of, sublayer_context

        stack, file = layer.stack, layer.stack.file
        o, self.layer = component.options, layer
        self.name: str = o.name
        context = sublayer_context(stack.o, stack.c, layer.layer, component)
        view: dict[str, Any] = {}
        if component.kind in ATTENTION:
            memory = memory_of(stack.o, component)
            variable = stack.memories[memory] if memory else ""
            if memory:
                mask = f"{variable}_mask" if stack.memory_padded[variable] else ""
            else:
                mask = "mask" if stack.mask_of(layer.layer) else ""
            scheme = None if memory or not context.position.entry.acts & {"queries_keys", "scores"} else context.position
            own_scheme = scheme is not None and scheme.entry.tables(scheme.options) == "layer"
            place = AttentionPlace(use_of(component, context), stack.uses, variable, mask, scheme, own_scheme)
            view["attention"] = AttentionView(file, o, context, place)
        self.reads_query = "attention" in view and view["attention"].reads_query
        self.part: Any = file.template(component, c=context, **view)
        self.new = file.define(self.part)[1]
        self.scale = layer.constants.branch * o.residual_scale

    def bare(self, x: str) -> str:
        """The sub-layer alone, f(x)."""
        return str(self.part.call(f'self.branches["{self.name}"]', x)).strip()

    def residual(self, y: str) -> str:
        """What is added to the residual: dropout and the factor of the branch."""
        dropped = f"self.dropout({y})" if self.layer.layer.dropout else y
        return dropped if self.scale == 1.0 else f"{self.layer.stack.file.const('BRANCH_SCALE', self.scale)} * {dropped}"

    def call(self, x: str) -> str:
        return self.residual(self.bare(x))


class LayerView:
    """One layer of a `StackView`: its sub-layers, norms and residual."""

    def __init__(self, stack: Any, layer: Layer) -> None:
        placement = layer.placement
        assert placement is not None
        assert stack.c.stack is not None
        self.stack, self.layer, self.file = stack, layer, stack.file
        self.constants = placement.entry.constants(placement.options, stack.c.stack)
        self.sublayers = [SublayerView(self, component) for component in layer.sublayers or ()]
        names = tuple(sublayer.name for sublayer in self.sublayers)
        self.sites = placement.entry.norm_sites(placement.options, names) if layer.norm.kind != "none" else ()
        skip = self.constants.skip
        self.skip = "x" if skip == 1.0 else f"{self.file.const('ALPHA', skip, 'factor of the residual')} * x"
        self.placement: Any = self.file.template(placement, layer=self)
        kinds = {component.kind for component in layer.sublayers or ()}
        self.title = {frozenset({"self_attention"}): "AttentionLayer", frozenset({"ffn"}): "FeedForwardLayer"}.get(
            frozenset(kinds), f"{stack.title}Layer"
        )
        module = any(sublayer.reads_query for sublayer in self.sublayers)
        types = {"rotation": "tuple[Tensor, Tensor]", "bias": "nn.Module" if module else "Tensor"}
        self.signature = ", ".join(["self", "x: Tensor", *(f"{name}: {types.get(name, 'Tensor')}" for name in stack.needs)])
        self.norms = {
            site: self.file.norm(layer.norm, self.file.const("D_MODEL", stack.width), in_stack=True) for site in self.sites
        }
        self.part: Any = render(LAYER, layer=self, file=self.file)

    def norm(self, site: str, x: str) -> str:
        """The norm of a site, applied."""
        return f'self.norms["{site}"]({x}{self.stack.shown(self.layer.norm)})' if site in self.sites else x

    @property
    def result(self) -> str:
        """The variable that the layer returns."""
        return str(getattr(self.placement, "result", "x"))

    @property
    def forward(self) -> str:
        return str(self.placement.forward(self)).strip("\n")


TITLES = {"encoder": "Encoder", "encoder_only": "Encoder", "decoder": "Decoder", "decoder_only": "Decoder"}


def pattern(items: Sequence[str]) -> str:
    """A list as short text: `[a] + [b, c] * 7`."""
    best = f"[{', '.join(items)}]"
    for start in range(min(4, len(items))):
        rest = items[start:]
        for period in range(1, min(8, len(rest) // 2) + 1):
            if len(rest) % period == 0 and list(rest) == list(rest[:period]) * (len(rest) // period):
                times = len(rest) // period
                text = (f"[{', '.join(items[:start])}] + " if start else "") + f"[{', '.join(rest[:period])}] * {times}"
                best = min(best, text, key=len)
    return best


class StackView:
    """The layers of one stack. `uses` are every attention of the model; `keeps`: the outputs of all layers are read."""

    def __init__(self, file: SourceFile, o: Any, c: NodeContext, uses: tuple[Use, ...], keeps: bool) -> None:
        from ...builtin.node.stack_entry import added_scheme, memory_of, shared_schemes

        self.file, self.o, self.c, self.uses, self.keeps = file, o, c, uses, keeps
        assert c.stack is not None
        self.title = TITLES[c.stack.role]
        self.width = c.signals["input"].width
        self.padded = c.signals["input"].padded
        self.schemes = shared_schemes(o, c)
        read = [memory_of(o, s) for leaf in leaves(o.layers) for s in leaf.layer.sublayers or () if s.entry.reads == "memory"]
        self.memories: dict[str, str] = {}
        """The variable of each memory, by node."""
        for node in read:
            if node is not None:
                self.memories[node] = "memory" if node == o.memory else memory_variable(node)
        self.memory_padded = {variable: c.memories[node].padded for node, variable in self.memories.items()}
        self.windows = list(dict.fromkeys(s.options.window for leaf in leaves(o.layers) for s in leaf.layer.sublayers or ()
                                          if s.kind == "self_attention"))  # fmt: skip
        self.applied = [(number, layer) for number, layer in sequence(o.layers)]
        added = {added_scheme(c, layer) for _, layer in self.applied}
        if len(added) > 1:
            raise Refused("positions that are added to the input of some layers only, or differ between them")
        self.adds = added != {None}
        self.needs = self._needs()
        self.classes = self._classes()

    # Masks and positions of one layer.

    def mask_of(self, layer: Layer) -> str:
        """The variable that holds the mask of a layer's self-attention; empty without a mask."""
        windows = [s.options.window for s in layer.sublayers or () if s.kind == "self_attention"]
        if len(set(windows)) > 1:
            raise Refused("two windows in one layer")
        if not windows or (not self.padded and not self.o.causal and windows[0] is None):
            return ""
        named = self._mask_names
        return named[windows[0]]

    @cached_property
    def _mask_names(self) -> dict[Any, str]:
        if len(self.windows) == 1:
            return {self.windows[0]: "mask"}
        names, number = {}, 0
        for window in self.windows:
            number += window is not None
            names[window] = "full" if window is None else "local" if number == 1 else f"local_{number}"
        return names

    def _scheme_index(self, layer: Layer) -> int | None:
        from ...builtin.node.stack_entry import shared_scheme

        for sublayer in layer.sublayers or ():
            pair = shared_scheme(self.o, self.c, layer, sublayer)
            if pair is not None:
                return self.schemes.index(pair)
        return None

    def _needs(self) -> list[str]:
        """The arguments of a layer after x."""
        kinds = {s.kind for _, layer in self.applied for s in layer.sublayers or ()}
        needs = []
        if any(self._rotates(index) for index in range(len(self.schemes))):
            needs.append("rotation")
        if any("scores" in scheme.entry.acts for scheme, _ in self.schemes):
            needs.append("bias")
        if any(self.mask_of(layer) for _, layer in self.applied):
            needs.append("mask")
        if self.padded and (kinds - {*ATTENTION, "ffn"} or any(layer.norm.entry.over_batch for _, layer in self.applied)):
            needs.append("visible")
        for variable, padded in self.memory_padded.items():
            needs += [variable, *([f"{variable}_mask"] if padded else [])]
        return needs

    def shown(self, norm: Component) -> str:
        """What a norm is called with after x: a norm over the batch does not count padding."""
        return ", visible" if norm.entry.over_batch and self.padded else ""

    def _rotates(self, index: int) -> bool:
        return "queries_keys" in self.schemes[index][0].entry.acts

    # The layers.

    def _classes(self) -> dict[int, str]:
        """The constructor of each module, by number."""
        constructors: dict[int, str] = {}
        for number, layer in self.applied:
            if number not in constructors:
                constructors[number] = self.file.define(LayerView(self, layer).part)[1]
        return constructors

    @property
    def modules(self) -> str:
        """The constructor of all layers."""
        kinds = [text.removesuffix("()") for _, text in sorted(self.classes.items())]
        if len(kinds) == 1:
            return f"nn.ModuleList([{kinds[0]}()])"
        count = self.file.const("NUM_LAYERS", len(kinds))
        if len(set(kinds)) == 1:
            return f"nn.ModuleList({kinds[0]}() for _ in range({count}))"
        return f"nn.ModuleList(kind() for kind in {pattern(kinds)})"

    @property
    def positions(self) -> list[str]:
        """The constructors of the position tables that the layers share."""
        if not any(scheme.entry.parameters(scheme.options, site) for scheme, site in self.schemes):
            return []
        return [self._scheme(index).new() or "nn.Identity()" for index in range(len(self.schemes))]

    def _scheme(self, index: int) -> BoundPart:
        scheme, site = self.schemes[index]
        return BoundPart(self.file, scheme, site)

    # The forward pass.

    @property
    def doc(self) -> str:
        depth = len(self.applied)
        shared = " that share their weights" if len(self.classes) == 1 and depth > 1 else ""
        section = ', "Attention Is All You Need", section 3.1' if depth > 1 and self.title in ("Encoder", "Decoder") else ""
        return f"{depth} layer{'s' if depth > 1 else ''}{shared}{section}."

    @property
    def arguments(self) -> list[str]:
        """The arguments of the stack."""
        arguments = ["x", *(["visible"] if self.padded else [])]
        for variable, padded in self.memory_padded.items():
            arguments += [variable, *([f"{variable}_visible"] if padded else [])]
        return arguments

    @property
    def signature(self) -> str:
        return ", ".join(["self", *(f"{name}: Tensor" for name in self.arguments)])

    @property
    def forward_doc(self) -> str:
        memories = [f"{variable} (B, K, M)" for variable in self.memories.values()]
        marks = [name for name in self.arguments if name.endswith("visible")]
        text = f"{' and '.join(['x (B, L, M)', *memories])} -> (B, L, M)"
        return text + (f"; {marks[0]} (B, L) is False at padding." if len(marks) == 1 else
                       "; padding is not visible." if marks else ".")  # fmt: skip

    def call_arguments(self, node: Any) -> str:
        """The arguments of a call in the model's forward pass."""
        arguments = [node.input, *([node.visible] if self.padded else [])]
        for name, variable in self.memories.items():
            arguments += [node.value(name), *([node.visible_of(name)] if self.memory_padded[variable] else [])]
        return ", ".join(arguments)

    @property
    def prepare(self) -> list[str]:
        """The lines before the layers: masks, rotations and biases."""
        lines = [*self._mask_lines()]
        for variable, padded in self.memory_padded.items():
            if padded:
                lines.append(f"{variable}_mask = {variable}_visible[:, None, None]  # (B, 1, 1, K)")
        for index in range(len(self.schemes)):
            rotates = self._rotates(index)
            name = self._scheme_variable(index)
            if self.adds:
                embedded = self._scheme(index).embed("x").removeprefix("x + ")
                lines.append(f"added = {embedded.replace('self.position(', f'self.positions[{index}](')}  # (L, M)")
                continue
            if rotates:
                lines.append(f"{name} = {self._scheme(index).tables('x.shape[1]')}")
            else:
                scheme, module = self._scheme(index), f"self.positions[{index}]"
                if scheme.offers("query_bias"):
                    lines.append(f"{name} = {module}  # reads the queries of each layer")
                else:
                    lines.append(f"{name} = {scheme.called('bias', module, 'x.shape[1]')}  # (H, L, L)")
        return lines

    def _mask_lines(self) -> Iterator[str]:
        if "mask" not in self.needs:
            return
        named, causal = self._mask_names, bool(self.o.causal)
        windows = {window: name for window, name in named.items() if window is not None}
        base = named.get(None, "mask" if len(named) == 1 else "full")
        square = causal or bool(windows)
        if windows:
            yield "position = torch.arange(x.shape[1], device=x.device)"
            yield "distance = position - position[:, None]  # (L, L): key j - query i"
        if causal and windows:
            yield f"{base} = distance <= 0  # a query sees itself and what comes before it"
        elif causal:
            ones = "torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device)"
            yield f"{base} = {ones}.tril()  # query i sees key j <= i"
        if self.padded and square and causal:
            yield f"{base} = {base} & visible[:, None, None]  # (B, 1, L, L)"
        elif self.padded:
            yield f"{base} = visible[:, None, None]  # (B, 1, 1, L): no query sees padding"
        for window, name in windows.items():
            near = self._near(window)
            terms = f"{base} & {near}" if causal or self.padded else near
            yield f"{name} = {terms}"

    def _near(self, window: Any) -> str:
        size = self.file.const
        if isinstance(window, int):
            return f"(distance > -{size('WINDOW', window)})"
        left, right = window
        if left is not None and left == right:
            return f"(distance.abs() <= {size('WINDOW', left)})"
        sides = [f"(distance >= -{size('WINDOW_LEFT', left)})"] if left is not None else []
        sides += [f"(distance <= {size('WINDOW_RIGHT', right)})"] if right is not None else []
        return " & ".join(sides) or "torch.ones_like(distance, dtype=torch.bool)"

    def _scheme_variable(self, index: int) -> str:
        name = "rotation" if self._rotates(index) else "bias"
        alike = [i for i in range(len(self.schemes)) if self._rotates(i) == self._rotates(index)]
        return name if len(alike) == 1 else f"{name}_{alike.index(index) + 1}"

    def _varying(self) -> dict[str, list[str]]:
        """The variables that differ between layers: by argument, the variable of each layer."""
        varying = {}
        masks = []
        if "mask" in self.needs:
            usual = next(iter(self._mask_names.values()))
            masks = [self.mask_of(layer) or usual for _, layer in self.applied]
        if len(set(masks)) > 1 or (masks and masks[0] != "mask"):
            varying["mask"] = masks
        for kind, rotates in (("rotation", True), ("bias", False)):
            if kind in self.needs:
                fallback = next(i for i in range(len(self.schemes)) if self._rotates(i) == rotates)
                indices = [self._scheme_index(layer) for _, layer in self.applied]
                names = [self._scheme_variable(fallback if i is None or self._rotates(i) != rotates else i) for i in indices]
                if len(set(names)) > 1:
                    varying[kind] = names
        return varying

    @property
    def loop(self) -> str:
        """What the loop over the layers says after `for`."""
        order, varying = [number for number, _ in self.applied], self._varying()
        if len(self.classes) == 1 and len(order) > 1:
            if varying:
                raise Refused("masks or positions that differ between layers that share their weights")
            return f"_ in range({self.file.const('NUM_LAYERS', len(order))})"
        layers = "self.layers" if order == list(range(len(self.classes))) else \
            f"[self.layers[i] for i in {pattern([str(i) for i in order])}]"  # fmt: skip
        if not varying:
            return f"layer in {layers}"
        lists = ", ".join(pattern(names) for names in varying.values())
        return f"layer, {', '.join(varying)} in zip({layers}, {lists}, strict=True)"

    @property
    def apply(self) -> str:
        layer = "self.layers[0]" if len(self.classes) == 1 and len(self.applied) > 1 else "layer"
        return f"{layer}({', '.join(['x + added' if self.adds else 'x', *self.needs])})"
