"""tfkit: a YAML spec becomes a running Transformer in which every part is a plugin, and swaps that should not matter are
proven not to. See the README for the language, the contract of attention and the commands.

    model = tfkit.build("specs/transformer-base.yaml")
    logits = model(source=ids, target=ids).logits

Names are imported when first used, so that `import tfkit` imports no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    verify: Any

    from .builder import build
    from .catalogue import Catalogue, load_catalogue
    from .comparison import Candidate, Comparison, compare_recipes
    from .cpu.product_table_file import use_cpu_table
    from .errors import (
        BackendRefused,
        BuildError,
        Diagnostic,
        InputError,
        Location,
        PluginError,
        SpecError,
        StoreError,
        TfkitError,
        TrainingError,
    )
    from .generate import (
        Generated,
        GnmtLengthPenalty,
        Hypothesis,
        PowerLengthPenalty,
        Search,
        beam_search,
        generate_batched,
        generate_stream,
        greedy,
        sample,
    )
    from .graph import Graph, graph_of
    from .images import ImageClassifier
    from .io import load, save
    from .metrics import corpus_scores
    from .nn.model import Model
    from .nn.outputs import Outputs
    from .nn.runtime.decoding_state import DecodingState
    from .recipe import Recipe, load_recipe
    from .spec import ModelSpec, load_spec, parse_spec
    from .text import Answerer, Classifier, Tagger, TextGenerator, Translator

_HOMES = {
    "Answerer": "text",
    "BackendRefused": "errors",
    "BuildError": "errors",
    "Candidate": "comparison",
    "Catalogue": "catalogue",
    "Classifier": "text",
    "Comparison": "comparison",
    "DecodingState": "nn.runtime.decoding_state",
    "Diagnostic": "errors",
    "Generated": "generate",
    "GnmtLengthPenalty": "generate",
    "Graph": "graph",
    "Hypothesis": "generate",
    "ImageClassifier": "images",
    "InputError": "errors",
    "Location": "errors",
    "Model": "nn.model",
    "ModelSpec": "spec",
    "Outputs": "nn.outputs",
    "PluginError": "errors",
    "PowerLengthPenalty": "generate",
    "Recipe": "recipe",
    "Search": "generate",
    "SpecError": "errors",
    "StoreError": "errors",
    "Tagger": "text",
    "TextGenerator": "text",
    "TfkitError": "errors",
    "TrainingError": "errors",
    "Translator": "text",
    "beam_search": "generate",
    "build": "builder",
    "compare_recipes": "comparison",
    "corpus_scores": "metrics",
    "generate_batched": "generate",
    "generate_stream": "generate",
    "graph_of": "graph",
    "greedy": "generate",
    "load": "io",
    "load_catalogue": "catalogue",
    "load_recipe": "recipe",
    "load_spec": "spec",
    "parse_spec": "spec",
    "sample": "generate",
    "save": "io",
    "use_cpu_table": "cpu.product_table_file",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return import_module("importlib.metadata").version("tfkit")
    if name == "verify":
        return _from_conformance(name)
    if name in _HOMES:
        return getattr(import_module(f".{_HOMES[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _from_conformance(name: str) -> Any:
    """A function of tfkit-conformance, found by entry point: the core imports no distribution that builds on it."""
    from importlib.metadata import entry_points

    for point in entry_points(group="tfkit.functions", name=name):
        return point.load()
    raise ImportError(f"`tfkit.{name}` belongs to tfkit-conformance: pip install 'tfkit[conformance]'")


def __dir__() -> list[str]:
    return sorted({*(name for name in globals() if name.startswith("__")), *__all__, "__version__"})


__all__ = [
    "Answerer",
    "BackendRefused",
    "BuildError",
    "Candidate",
    "Catalogue",
    "Classifier",
    "Comparison",
    "DecodingState",
    "Diagnostic",
    "Generated",
    "GnmtLengthPenalty",
    "Graph",
    "Hypothesis",
    "ImageClassifier",
    "InputError",
    "Location",
    "Model",
    "ModelSpec",
    "Outputs",
    "PluginError",
    "PowerLengthPenalty",
    "Recipe",
    "Search",
    "SpecError",
    "StoreError",
    "Tagger",
    "TextGenerator",
    "TfkitError",
    "TrainingError",
    "Translator",
    "beam_search",
    "build",
    "compare_recipes",
    "corpus_scores",
    "generate_batched",
    "generate_stream",
    "graph_of",
    "greedy",
    "load",
    "load_catalogue",
    "load_recipe",
    "load_spec",
    "parse_spec",
    "sample",
    "save",
    "use_cpu_table",
    "verify",
]
