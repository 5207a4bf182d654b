"""From a spec to a running model: build on the meta device, hold the modules against the graph, allocate once, initialise.

Nothing is allocated twice: modules are made without storage, given storage on their device, and filled tensor by tensor.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from .catalogue import Catalogue, load_catalogue
from .errors import BackendRefused, BuildError, Fault, InputError, SpecError
from .graph import Graph, Node, Target, graph_of, longest
from .graph.model_graph import base
from .graph.plan import candidates_for, request_for
from .nn.choice import BackendChoice, BoundBackend, bind
from .nn.heads import Classify
from .nn.labels import LabelRule, label_rule
from .nn.model import Model
from .nn.model_plan import ModelPlan, Wire
from .nn.placed import device_here
from .nn.tokens import TokenLogits
from .slots.attention import judge
from .slots.init import Distribution, InitFacts
from .slots.lazy import load
from .slots.node import InputRule
from .slots.options import Part, SlotListField
from .slots.parameter import Parameter, ParameterGroup
from .slots.sublayer import AttentionSite
from .spec import load_spec, parse_spec
from .spec.model import ModelSpec


def build(
    spec: ModelSpec | Mapping[str, Any] | str | os.PathLike[str],
    catalogue: Catalogue | None = None,
    *,
    device: str | torch.device = "cpu",
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    backend: Any = None,
) -> Model:
    """A model from a spec, its path, or a Python mapping of what its file would hold, initialised by the spec's initialisers.

    The same seed gives the same weights on every device: each parameter is drawn from a generator of its own, seeded by `seed`
    and the parameter's name, so that changing one part of a spec leaves the weights of the others as they were. `backend`
    replaces the spec's wish at every site. On `device="meta"` nothing is allocated or initialised.

    Raises SpecError for a wrong spec, BackendRefused where a site has no backend on this device, BuildError where the model
    does not fit or a plugin's module does not have the parameters that its entry lists.
    """
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise InputError(
            Fault("TFK071", f"dtype {dtype!r} is no floating torch.dtype", "pass torch.float32, torch.bfloat16, ...")
        )
    if not isinstance(spec, (ModelSpec, Mapping, str, os.PathLike)):
        message = f"a spec is a path, a mapping or a ModelSpec, not a {type(spec).__name__}"
        raise InputError(Fault("TFK073", message, "tfkit.parse_spec reads text, tfkit.load_spec a file"))
    catalogue = catalogue or load_catalogue()
    if not isinstance(spec, ModelSpec):
        spec = parse_spec(spec, catalogue) if isinstance(spec, Mapping) else load_spec(spec, catalogue)
    graph = graph_of(spec)
    device = device_here(device)
    check_fits(graph, device, dtype)
    binder = Binder(dict(graph.sites()), catalogue, device, dtype)
    model = _modules(graph, binder, backend)
    _check_parameters(graph, model)
    model.spec = spec
    materialise(model, device, dtype)
    if device.type != "meta":
        initialise(model, graph, catalogue, seed)
    return model


def materialise(model: nn.Module, device: torch.device, dtype: torch.dtype) -> None:
    """Give every parameter storage of its own, uninitialised, on a device and in a dtype; a shared module has it once."""
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            storage = torch.empty(parameter.shape, device=device, dtype=dtype)
            module.register_parameter(name, nn.Parameter(storage, parameter.requires_grad))


def check_fits(graph: Graph, device: torch.device, dtype: torch.dtype) -> None:
    """Raises BuildError with both numbers when the parameters alone are larger than the device's memory."""
    needed = (graph.parameters() + graph.parameters(trainable=False)) * dtype.itemsize
    if device.type == "cpu":
        there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    elif device.type == "cuda" and torch.cuda.is_available():
        there = torch.cuda.get_device_properties(device).total_memory
    elif device.type == "cuda":
        raise BuildError(Fault("TFK046", "there is no CUDA device here", "use `--device cpu`, or `tfkit plan` to plan for one"))
    else:
        return
    if needed > there:
        message = f"the parameters need {needed:,} bytes in {dtype}, but {device} has {there:,}"
        raise BuildError(Fault("TFK045", message, "make the model smaller, choose a smaller dtype, or another device"))


class Binder:
    """Makes the backend choice of a site from what a spec or a user wishes, on the device the model is built for."""

    def __init__(self, sites: dict[str, AttentionSite], catalogue: Catalogue, device: torch.device, dtype: torch.dtype) -> None:
        self.sites = sites
        self.catalogue = catalogue
        capability = torch.cuda.get_device_capability(device) if device.type == "cuda" else None
        self.target = Target(device.type, capability, str(dtype).removeprefix("torch."), training=False)
        self.others = catalogue.ready("backend")
        self.bound: dict[str, BoundBackend] = {}

    def __deepcopy__(self, memo: object) -> Binder:
        return self

    def on(self, device: torch.device, dtype: torch.dtype) -> Binder:
        """The same for another device or dtype."""
        return Binder(self.sites, self.catalogue, device, dtype)

    def __call__(self, site: str, wish: Any) -> BackendChoice:
        """Raises BackendRefused where no backend of the wish can serve the site whatever the call."""
        facts = self.sites[site]
        parts = self.parts(wish)
        candidates, automatic = candidates_for(parts, self.catalogue)
        bound = tuple(self._bound(entry, options) for entry, options in candidates)
        choice = BackendChoice(site, [part.written() for part in parts], bound, automatic, self.others)
        if self.target.device != "meta":
            request = request_for(facts, self.target)
            if not any(judge(entry, request, options).accepted for entry, options in candidates):
                choice.judge(request)
        return choice

    def parts(self, wish: Any) -> tuple[Part, ...]:
        """A wish such as "sdpa", {"kind": "sdpa", ...}, "auto" or a list of these, as parts."""
        from pydantic import ValidationError

        try:
            parts = SlotListField("backend").resolve(wish, SimpleNamespace(context={"catalogue": self.catalogue}))
        except ValidationError as reason:
            first = reason.errors(include_url=False)[0]
            place = ".".join(map(str, first["loc"]))
            raise SpecError(Fault("TFK021", f"`{wish}` is no attention backend: {place}: {first['msg']}")) from None
        except ValueError as reason:
            name = wish if isinstance(wish, str) else str(wish)
            fix = self.catalogue.why_missing("backend", name)
            raise SpecError(Fault("TFK012", f"`{name}` names no attention backend: {reason}", fix)) from None
        if len(parts) > 1 and any(part.kind == "auto" for part in parts):
            fix = "ask for `auto`, or for a list without it"
            raise SpecError(Fault("TFK021", "`auto` chooses among all backends, so it stands alone", fix))
        return parts

    def _bound(self, entry: Any, options: Any) -> BoundBackend:
        key = f"{entry.name} {options!r}"
        if key not in self.bound:
            self.bound[key] = bind(entry, options)
        return self.bound[key]


def _modules(graph: Graph, binder: Binder, backend: Any) -> Model:
    read_layers = {base(ref) for node in graph.nodes.values() for ref in node.edges.reads.values() if ref.endswith(".layers")}
    with torch.device("meta"):
        nodes = {name: _module(node, name in read_layers) for name, node in graph.nodes.items()}
        eager = binder.catalogue.find("backend", "eager")
        model = Model(_plan(graph, nodes), nodes, binder, bind(eager, eager.options()))
    refused: list[Fault] = []
    for attention, index, site in model._site_table():
        try:
            attention.choices[index] = binder(site, list(binder.sites[site].backend) if backend is None else backend)
        except BackendRefused as refusal:
            refused += refusal.faults
    if refused:
        raise BackendRefused(refused)
    return model


def _module(node: Node, keep_layers: bool) -> nn.Module:
    return load(node.kind.build)(node.options, node.facts, keep_layers)  # type: ignore[no-any-return]


def _plan(graph: Graph, modules: Mapping[str, nn.Module]) -> ModelPlan:
    wires = {name: Wire(node.edges.reads, node.edges.memories, node.edges.owner) for name, node in graph.nodes.items()}
    inputs = {
        node.name: node.kind.input_rule(node.options, node.facts) for node in graph.inputs() if node.kind.input_rule is not None
    }
    followers = {name: _followers(graph, name) for name in inputs}
    undecodable = {}
    for name, following in followers.items():
        reason = _undecodable(graph, following)
        if reason:
            undecodable[name] = reason
    widths = {name: graph.nodes[name].signal.width for name in graph.outputs}
    limits = {name: limit for name, limit in longest(graph).items() if limit is not None}
    labels = {
        name: _labels(graph, name, module, inputs, undecodable)
        for name, module in modules.items()
        if name in graph.outputs and isinstance(module, (TokenLogits, Classify))
    }
    return ModelPlan(graph.name, wires, inputs, graph.outputs, widths, followers, undecodable, limits, labels)


def _labels(
    graph: Graph, name: str, module: nn.Module, inputs: Mapping[str, InputRule], undecodable: Mapping[str, str]
) -> LabelRule:
    """What the labels of an output of logits are; classes are not over the vocabulary of the tokens that they follow."""
    tokens = graph.nodes[name].signal.tokens if isinstance(module, TokenLogits) else None
    return label_rule(inputs.get(tokens or ""), tokens, tokens not in undecodable, len(inputs) == 1)


def _followers(graph: Graph, name: str) -> frozenset[str]:
    """The nodes whose output depends on an input node, itself included."""
    found = {name}
    for other, node in graph.nodes.items():
        if found & {base(ref) for ref in (*node.edges.reads.values(), *node.edges.memories)}:
            found.add(other)
    return frozenset(found)


def _undecodable(graph: Graph, following: frozenset[str]) -> str | None:
    for name in following:
        node = graph.nodes[name]
        if not node.kind.stepwise(node.options):
            return f"`{name}` ({node.part.kind}) needs the whole sequence"
        for ref in (node.edges.reads.get("memory"), *node.edges.memories):
            if ref is not None and base(ref) in following:
                return f"`{name}` reads `{ref}` as a memory, which would grow"
    return None


def _check_parameters(graph: Graph, model: Model) -> None:
    """The modules have exactly the parameters that the graph counts: same names, same shapes."""
    built = {name: _described(p.shape, p.requires_grad) for name, p in model.named_parameters()}
    listed = {
        f"nodes.{node.name}.{p.name}": _described(p.shape, p.trainable)
        for node in graph.nodes.values()
        for p in node.parameters()
    }
    if buffers := [name for name, _ in model.named_buffers()]:
        message = f"`{buffers[0]}` is a buffer; modules are built without storage, so its numbers are lost"
        raise BuildError(Fault("TFK054", message, "compute what is no parameter when the module runs"))
    differing = sorted(name for name in set(built) | set(listed) if built.get(name) != listed.get(name))
    fix = "the entry's `parameters` and the module that its `build` gives must agree"
    faults = [
        Fault(
            "TFK054", f"`{name}` is {built.get(name, 'missing')} in the module, {listed.get(name, 'missing')} in its entry", fix
        )
        for name in differing
    ]
    if faults:
        raise BuildError(faults)


def _described(shape: Iterable[int], trainable: bool) -> str:
    return f"{tuple(shape)}{'' if trainable else ' frozen'}"


def initialise(model: Model, graph: Graph, catalogue: Catalogue, seed: int) -> None:
    """Draw every parameter in place, by its role, each from a generator of its own."""
    tensors = dict(model.named_parameters())
    xavier = catalogue.find("init", "xavier")
    usual = Part(xavier, xavier.options())
    for node in graph.nodes.values():
        part = getattr(node.options, "init", None) or usual
        for group, parameter in _expanded(node):
            name = f"nodes.{node.name}.{parameter.name}"
            facts = InitFacts(_width(node), _depth(node), group.head_dim)
            drawn = part.entry.draw(part.options, parameter, facts)
            digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
            fill(tensors[name], drawn, group.gains.get(parameter.role, 1.0), int.from_bytes(digest[:8], "little"))


def _width(node: Node) -> int:
    signal = node.facts.signals.get("input")
    return signal.width if signal else node.signal.width


def _depth(node: Node) -> int:
    return node.facts.stack.num_layers if node.facts.stack else 0


def _expanded(node: Node) -> Iterator[tuple[ParameterGroup, Parameter]]:
    for group in node.parameter_groups():
        for parameter in group.expanded():
            yield group, parameter


@torch.no_grad()
def fill(tensor: Tensor, drawn: Distribution, gain: float, seed: int) -> None:
    """Fill a parameter from a distribution, `gain` times its spread; the numbers do not depend on the device."""
    if drawn.kind == "constant":
        tensor.fill_(drawn.centre)
        return
    generator = torch.Generator("cpu").manual_seed(seed)
    here = tensor.device.type == "cpu" and tensor.dtype == torch.float32
    home = tensor if here else torch.empty(tensor.shape, dtype=torch.float32, device="cpu")
    spread = drawn.spread * gain
    if drawn.kind == "normal":
        home.normal_(drawn.centre, spread, generator=generator)
    elif drawn.kind == "uniform":
        home.uniform_(drawn.centre - spread, drawn.centre + spread, generator=generator)
    else:
        # The inverse of the normal distribution function, from uniform numbers within two standard deviations of the centre.
        inside = math.erf(math.sqrt(2.0))
        home.uniform_(-inside, inside, generator=generator).erfinv_().mul_(spread * math.sqrt(2.0)).add_(drawn.centre)
    if home is not tensor:
        tensor.copy_(home)
