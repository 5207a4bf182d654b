"""What the templates of layers ask: sub-layers, norms and the residual."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ...slots.layer import Layer
from ...slots.options import Component
from .attention_view import ATTENTION, AttentionPlace, AttentionView, use_of
from .source_file import render

LAYER = Path(__file__).with_name("layer.py.jinja")


class SublayerView:
    """One sub-layer of a layer.

    Args:
        layer: its layer.
        component: its kind and options.
    """

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
            own = scheme is not None and scheme.entry.tables(scheme.options) == "layer"
            place = AttentionPlace(use_of(component, context), stack.uses, variable, mask, scheme, own)
            view["attention"] = AttentionView(file, o, context, place)
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
    """One layer: its sub-layers, norms and residual.

    Args:
        stack: the `StackView` of its stack.
        layer: its options.
    """

    def __init__(self, stack: Any, layer: Layer) -> None:
        placement = layer.placement
        assert placement is not None
        assert stack.c.stack is not None
        self.stack, self.layer, self.file = stack, layer, stack.file
        self.constants = placement.entry.constants(placement.options, stack.c.stack)
        self.sublayers = [SublayerView(self, component) for component in layer.sublayers or ()]
        names = tuple(each.name for each in self.sublayers)
        self.sites = placement.entry.norm_sites(placement.options, names) if layer.norm.kind != "none" else ()
        skip = self.constants.skip
        self.skip = "x" if skip == 1.0 else f"{self.file.const('ALPHA', skip, 'factor of the residual')} * x"
        self.placement: Any = self.file.template(placement, layer=self)
        kinds = {component.kind for component in layer.sublayers or ()}
        self.title = {frozenset({"self_attention"}): "AttentionLayer", frozenset({"ffn"}): "FeedForwardLayer"}.get(
            frozenset(kinds), f"{stack.title}Layer"
        )
        types = {"rotation": "tuple[Tensor, Tensor]"}
        self.signature = ", ".join(["self", "x: Tensor", *(f"{name}: {types.get(name, 'Tensor')}" for name in stack.needs)])
        self.norms = {site: self.file.norm(layer.norm, self.file.const("D_MODEL", stack.width)) for site in self.sites}
        self.part: Any = render(LAYER, layer=self, file=self.file)

    def norm(self, site: str, x: str) -> str:
        """The norm of a site, applied."""
        return f'self.norms["{site}"]({x})' if site in self.sites else x

    @property
    def result(self) -> str:
        """The variable that the layer returns."""
        return str(getattr(self.placement, "result", "x"))

    @property
    def forward(self) -> str:
        return str(self.placement.forward(self)).strip("\n")
