"""tfkit: a YAML spec becomes a running Transformer in which every part is a plugin, and swaps that should not matter are
proven not to. The spec language, the attention contract and the commands are in docs/.

    model = tfkit.build("specs/transformer-base.yaml")
    logits = model(source=ids, target=ids).logits

Names are imported when first used, so that `import tfkit` imports no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .lazy_names import lazy_names

if TYPE_CHECKING:
    verify: Any
    __version__: str

    from .builder import build as build
    from .catalogue import Catalogue as Catalogue, load_catalogue as load_catalogue, score_filter as score_filter
    from .comparison import Candidate as Candidate, Comparison as Comparison, compare_recipes as compare_recipes
    from .cpu.product_table_file import use_cpu_table as use_cpu_table
    from .errors import (
        BackendRefused as BackendRefused,
        BuildError as BuildError,
        Diagnostic as Diagnostic,
        InputError as InputError,
        Location as Location,
        PluginError as PluginError,
        SpecError as SpecError,
        StoreError as StoreError,
        TfkitError as TfkitError,
        TrainingError as TrainingError,
    )
    from .generate import (
        Generated as Generated,
        GnmtLengthPenalty as GnmtLengthPenalty,
        Hypothesis as Hypothesis,
        PowerLengthPenalty as PowerLengthPenalty,
        Search as Search,
        beam_search as beam_search,
        generate_batched as generate_batched,
        generate_stream as generate_stream,
        greedy as greedy,
        sample as sample,
    )
    from .graph import Graph as Graph, graph_of as graph_of
    from .images import ImageClassifier as ImageClassifier
    from .io import load as load, save as save
    from .metrics import corpus_scores as corpus_scores
    from .nn.model import Model as Model
    from .nn.outputs import Outputs as Outputs
    from .nn.runtime.decoding_state import DecodingState as DecodingState
    from .recipe import Recipe as Recipe, load_recipe as load_recipe
    from .spec import ModelSpec as ModelSpec, load_spec as load_spec, parse_spec as parse_spec
    from .text import (
        Answerer as Answerer,
        Classifier as Classifier,
        MaskFiller as MaskFiller,
        Rescorer as Rescorer,
        Shortlist as Shortlist,
        Tagger as Tagger,
        TextGenerator as TextGenerator,
        Translator as Translator,
    )
    from .text.saved_search import saved_search as saved_search


def _verify() -> Any:
    """A function of tfkit-conformance, which the entry point names: the core imports no distribution that builds on it."""
    from importlib.metadata import entry_points

    for point in entry_points(group="tfkit.functions", name="verify"):
        return point.load()
    from .distribution import install_line

    raise ImportError(f"`tfkit.verify` belongs to tfkit-conformance: {install_line('conformance')}")


def _version() -> str:
    from .distribution import version

    return version()


__getattr__, __dir__, __all__ = lazy_names(__name__, computed={"verify": _verify, "__version__": _version})
