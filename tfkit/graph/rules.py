"""Rules about the whole graph, one function each. Rules about one node belong to its kind."""

from __future__ import annotations

import difflib
from collections.abc import Iterator

from ..errors import Diagnostic, SpecError
from ..slots.layer import layer_paths
from ..spec.model import ModelSpec
from .model_graph import Graph, base, layers_of

# fmt: off
RESERVED_INPUTS = frozenset(
    {
        "masks", "lengths", "segments", "weights", "labels", "smoothing", "batch", "capacity", "self", "model", "prompt",
        "output", "max_new_tokens", "documents", "positions", "prefixes",
    }
)
"""Names of arguments of a model's methods and of `greedy`. No input node may have one of them."""

MODULE_ATTRIBUTES = frozenset(
    {
        "T_destination", "add_module", "apply", "bfloat16", "bool", "buffers", "call_super_init", "children", "clear",
        "compile", "cpu", "cuda", "double", "dump_patches", "eval", "extra_repr", "float", "forward", "get_buffer",
        "get_extra_state", "get_parameter", "get_submodule", "half", "ipu", "items", "keys", "load_state_dict", "modules",
        "mtia", "named_buffers", "named_children", "named_modules", "named_parameters", "parameters", "pop",
        "register_backward_hook", "register_buffer", "register_forward_hook", "register_forward_pre_hook",
        "register_full_backward_hook", "register_full_backward_pre_hook", "register_load_state_dict_post_hook",
        "register_load_state_dict_pre_hook", "register_module", "register_parameter", "register_state_dict_post_hook",
        "register_state_dict_pre_hook", "requires_grad_", "set_extra_state", "set_submodule", "share_memory", "state_dict",
        "to", "to_empty", "train", "training", "type", "update", "values", "xpu", "zero_grad",
    }
)
# fmt: on
"""Attributes of torch.nn.ModuleDict. No node and no sub-layer may have one of these names."""

RESERVED_OUTPUTS = {"weights": "the requested attention weights", "loss": "the loss of the given labels"}

LARGEST = 10**13
"""The largest number of parameters, 40 TB in float32. A larger number is a typing error."""


DEEPEST = 100_000
"""The largest number of layers. A module tree with more takes minutes to build."""


MAX_SUBLAYERS = 1_000
"""The largest number of sub-layers that a command makes without `--large`. `tfkit build` takes 4 ms for each, of any width."""


def check_sublayers(spec: ModelSpec, graph: Graph) -> None:
    """Raises SpecError for a model that takes minutes to make, whatever its width."""
    counts = {node.name: node.sublayers() for node in graph.nodes.values()}
    if (total := sum(counts.values())) <= MAX_SUBLAYERS:
        return
    most = max(counts, key=lambda name: counts[name])
    parameters = graph.parameters() + graph.parameters(trainable=False)
    rule = f"the model runs {total:,} sub-layers, {counts[most]:,} of them in `{most}`, and has {parameters:,} parameters"
    fix = f"more than {MAX_SUBLAYERS:,} take minutes: use fewer, or pass --large where the command has it"
    raise SpecError(spec.diagnostic("TFK045", f"nodes.{most}", rule, fix))


def broken_rules(graph: Graph, spec: ModelSpec) -> Iterator[Diagnostic]:
    rules = (
        _outputs_exist,
        _all_nodes_are_used,
        _input_names_are_free,
        _module_names_are_free,
        _fits_a_machine,
        _is_not_too_deep,
        _expected_count,
    )
    for rule in rules:
        yield from rule(graph, spec)


def _outputs_exist(graph: Graph, spec: ModelSpec) -> Iterator[Diagnostic]:
    for number, output in enumerate(graph.outputs):
        known = [*graph.nodes, *(f"{node.name}.{port}" for node in graph.nodes.values() for port in node.kind.ports)]
        if output not in known:
            near = difflib.get_close_matches(output, known, 1)
            fix = f"did you mean `{near[0]}`?" if near else f"nodes: {', '.join(graph.nodes)}"
            yield spec.diagnostic("TFK014", f"outputs.{number}", f"there is no node `{output}`", fix)
        elif output in graph.outputs[:number]:
            yield spec.diagnostic("TFK021", f"outputs.{number}", f"`{output}` is written twice", "name every output once")
        elif output in RESERVED_OUTPUTS:
            rule = f"`{output}` is where a model puts {RESERVED_OUTPUTS[output]}"
            yield spec.diagnostic("TFK013", f"outputs.{number}", rule, "rename the node")


def _all_nodes_are_used(graph: Graph, spec: ModelSpec) -> Iterator[Diagnostic]:
    used: set[str] = set()
    waiting = [base(output) for output in graph.outputs if base(output) in graph.nodes]
    while waiting:
        name = waiting.pop()
        if name not in used:
            used.add(name)
            waiting += [base(ref) for ref in graph.nodes[name].edges.all()]
    read = {base(ref) for node in graph.nodes.values() for ref in node.edges.all()}
    for name in graph.nodes:
        if name not in used and name not in read:  # a node that only unused nodes read is reported with them
            fix = "read it, add it to `outputs`, or remove it"
            for decoder in _without_memory(graph, used) if graph.nodes[name].context.stack else ():
                fix = f"write `memory: {name}` at `{decoder}` (`{decoder}.memory: {name}`), add it to `outputs`, or remove it"
            yield spec.diagnostic("TFK043", f"nodes.{name}", f"nothing reads `{name}`", fix)


def _without_memory(graph: Graph, used: set[str]) -> list[str]:
    """The causal stack among the used nodes that reads no memory, if there is exactly one: a decoder without its encoder."""
    stacks = [
        name
        for name, node in graph.nodes.items()
        if name in used and node.context.stack and node.part.options.causal and not node.context.memories
    ]
    return stacks if len(stacks) == 1 else []


def _input_names_are_free(graph: Graph, spec: ModelSpec) -> Iterator[Diagnostic]:
    for node in graph.inputs():
        if node.name in RESERVED_INPUTS:
            rule = f"`{node.name}` is an argument of every model, so no input can have this name"
            yield spec.diagnostic("TFK013", f"nodes.{node.name}", rule, "rename the node")


def _module_names_are_free(graph: Graph, spec: ModelSpec) -> Iterator[Diagnostic]:
    for node in graph.nodes.values():
        rule = "is an attribute of every torch module, so no {} can have this name"
        if node.name in MODULE_ATTRIBUTES:
            yield spec.diagnostic("TFK013", f"nodes.{node.name}", f"`{node.name}` {rule.format('node')}", "rename the node")
        for path, layer in layer_paths(layers_of(node.options), f"nodes.{node.name}.layers"):
            for number, sublayer in enumerate(layer.sublayers or ()):
                if sublayer.options.name in MODULE_ATTRIBUTES:
                    message = f"`{sublayer.options.name}` {rule.format('sub-layer')}"
                    yield spec.diagnostic("TFK013", f"{path}.sublayers.{number}", message, "give it another `name`")


def _fits_a_machine(graph: Graph, spec: ModelSpec) -> Iterator[Diagnostic]:
    for node in graph.nodes.values():
        count = node.count() + node.count(trainable=False)
        if count > LARGEST:
            needs = f"`{node.name}` has {count:,} parameters, {count * 4:,} bytes in float32"
            rule = f"{needs}; no machine holds more than {LARGEST:,} parameters"
            path = f"nodes.{node.name}.num_layers" if node.context.stack else f"nodes.{node.name}"
            yield spec.diagnostic("TFK045", path, rule, "make d_model, num_layers or vocab_size smaller")


def _is_not_too_deep(graph: Graph, spec: ModelSpec) -> Iterator[Diagnostic]:
    for node in graph.nodes.values():
        layers = node.context.stack.num_layers if node.context.stack else 0
        if layers > DEEPEST:
            size = (node.count() + node.count(trainable=False)) * 4
            rule = f"`{node.name}` has {layers:,} layers ({size:,} bytes of parameters in float32); {DEEPEST:,} is the most"
            yield spec.diagnostic("TFK045", f"nodes.{node.name}.num_layers", rule, "use fewer layers")


def _expected_count(graph: Graph, spec: ModelSpec) -> Iterator[Diagnostic]:
    expected = spec.expect.parameters if spec.expect else None
    count = graph.parameters()
    if expected is not None and count != expected:
        rule = f"{count:,} trainable parameters, {count - expected:+,} from the {expected:,} that the spec expects"
        yield spec.diagnostic("TFK044", "expect.parameters", rule, "correct the spec, or the expected number")
