"""`verify`: a spec or a built model in, a table of proofs out.

First every part where it stands: the model is run twice, padding told by masks and by lengths, and each sub-layer judged on the
inputs it really had, each attention site with every backend that it may use. Then the whole model: with each backend, in each
dtype asked for and in float64, by the relations of `tfkit.testing.verification.properties`.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from ...builder import build
from ...catalogue import Catalogue, load_catalogue
from ...errors import Fault, InputError, TfkitError
from ...graph import Graph, graph_of, longest
from ...nn.model import Model
from ...slots.options import CONTRACT
from ...spec.model import ModelSpec
from ..finding import Inconclusive, Violation
from ..raised import told
from .backends import by_site, wishes
from .batch import Batch, draw, lengths_for
from .local import local_checks
from .memory import no_room
from .properties import PROPERTIES
from .recording import Recording, record
from .recording import run as outputs_of
from .repeated import against_exact
from .rounding import Yardstick, cast, copied, yardstick
from .row import NotApplicable, Row, VerifyReport
from .sites import judge_sites
from .subject import Subject

DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16, "float16": torch.float16}
WIDE = "float64"
PARTS = (SUB_LAYERS, WHOLE_MODEL) = ("sub-layers", "whole model")


def verify(
    model: Model | ModelSpec | Mapping[str, Any] | str | Path,
    *,
    backends: Sequence[str] | None = None,
    devices: Sequence[str] = ("cpu",),
    dtypes: Sequence[str] = ("float32",),
    batch: int = 3,
    lengths: Mapping[str, int] | None = None,
    seed: int = 0,
    parts: Sequence[str] = PARTS,
    catalogue: Catalogue | None = None,
) -> VerifyReport:
    """Judge a model, part by part and as a whole, with every backend that it may use.

    A spec is built with the weights of `seed`, and whatever is constant in them (biases, norms) moved away from its start, so
    that leaving it out shows; a built model is judged with the weights that it has. `lengths` (by input) and `batch` size the
    inputs; the cost grows with their product. `parts` can leave out the sub-layers or the whole model. A device that is not
    here, and what does not fit in memory, give rows "not run".

    Raises SpecError for a wrong spec or backend, InputError for lengths, dtypes and sizes that the model cannot have,
    BuildError where the weights alone do not fit in memory.
    """
    began = time.perf_counter()
    _check(devices, dtypes, batch, parts)
    catalogue = catalogue or load_catalogue()
    given, words = _built(model, seed, catalogue)
    graph = graph_of(given.spec)
    chosen = lengths_for(graph, lengths)
    rows: list[Row] = []
    for device in devices:
        missing = absent(device)
        if missing:
            rows.append(Row("whole model", "everything", "", given.plan.name, "", "", device, "not run", None, missing))
            continue
        wide = {} if WIDE in dtypes or WHOLE_MODEL not in parts else {WIDE: (WHOLE_MODEL,)}
        for dtype, wanted in {**dict.fromkeys(dtypes, tuple(parts)), **wide}.items():
            try:
                run = _Run(given.to(device), graph, device, dtype, backends, catalogue, chosen, batch, seed)
            except Exception as reason:
                if not no_room(reason):
                    raise
                row = Row("whole model", "everything", "", given.plan.name, "", dtype, device, "not run")
                rows.append(replace(row, message=no_room(reason)))
                continue
            rows += run.sub_layers() if SUB_LAYERS in wanted else ()
            rows += run.whole_model() if WHOLE_MODEL in wanted else ()
    return VerifyReport(
        given.plan.name, given.parameter_count(), words, tuple(devices), tuple(dtypes), tuple(wishes(given, backends)), batch,
        chosen, seed, versions(catalogue), tuple(rows), time.perf_counter() - began, backends is not None,
    )  # fmt: skip


class _Run:
    """One device and dtype."""

    def __init__(
        self, model: Model, graph: Graph, device: str, dtype: str, backends: Sequence[str] | None, catalogue: Catalogue,
        lengths: dict[str, int], batch: int, seed: int,
    ) -> None:  # fmt: skip
        self.given, self.graph, self.device, self.dtype, self.seed = model, graph, device, dtype, seed
        self.model = cast(model, DTYPES[dtype])
        self.judged = by_site(model, backends, catalogue)
        self.wishes = wishes(model, backends)
        self.batch = draw(self.model, lengths, batch, seed, device)

    def sub_layers(self) -> Iterator[Row]:
        recordings: list[Recording] = []
        row = Row("sub-layers", "run", "", self.model.plan.name, "", self.dtype, self.device, "passed")

        def note() -> None:
            for batch, by_lengths in ((self.batch, False), (_right(self.batch), True)):
                recordings.append(record(self.model, batch, by_lengths))

        ran = judged(row, note)
        if ran.status != "passed":
            yield ran
            return
        for local in local_checks(self.model, self.graph, recordings[0]):
            own = replace(row, property=local.property, rule=local.rule, where=local.where)
            yield judged(own, local.check)
        for recording, how in zip(recordings, ("padding by mask", "padding by lengths"), strict=True):
            for found in judge_sites(recording, self.judged, self.seed):
                own = replace(row, property=f"attention, {how}", rule="A1-A5", where=found.site, backend=found.backend)
                own = replace(own, status=found.status, worst=found.worst, message=found.message)
                yield with_numbers(own, found.violation) if found.violation else own

    def whole_model(self) -> Iterator[Row]:
        dtype = DTYPES[self.dtype]
        row = Row("whole model", "run", "", self.model.plan.name, "", self.dtype, self.device, "passed")
        measured: list[Any] = []

        def measure() -> None:
            single = self.model if dtype != torch.float64 else cast(self.given, torch.float32)
            stick, exact = yardstick(single, self.batch)
            measured.extend((stick if dtype == stick.dtype else stick.at(dtype), exact))

        ran = judged(row, measure)
        if ran.status != "passed":
            yield ran
            return
        stick, exact = measured
        if dtype == torch.float64:
            exact = outputs_of(self.model, self.batch)
        for name, wish in self.wishes.items():
            yield from self._with_backend(replace(row, backend=name), wish, stick, exact)

    def _with_backend(self, row: Row, wish: list[Any], stick: Yardstick, exact: dict[str, torch.Tensor]) -> Iterator[Row]:
        subjects: list[Subject] = []

        def ready() -> None:
            model = cast(self.given, DTYPES[self.dtype], wish)
            baseline = outputs_of(model, self.batch)
            subjects.append(
                Subject(model, self.graph, self.batch, baseline, stick, row.backend, wish, self.seed, self.device,
                        DTYPES[self.dtype], longest(self.graph))
            )  # fmt: skip

        ran = judged(row, ready)
        if ran.status != "passed":
            yield ran
            return
        subject = subjects[0]
        unused = _unused(subject, row.backend)
        if unused:
            yield replace(row, property="run", status="refused", message=unused)
            return
        own = replace(row, property="float64 run", rule="")
        yield self._blunt(judged(own, lambda: against_exact(subject, exact)), stick)
        for each in PROPERTIES:
            own = replace(row, property=each.name, rule=each.rule)
            yield self._blunt(judged(own, lambda each=each: each.check(subject)), stick)  # type: ignore[misc]

    def _blunt(self, row: Row, stick: Yardstick) -> Row:
        """A rounded property passes in a dtype in which a fault could not be told from rounding: that is no proof."""
        if row.status != "passed" or row.worst is None or not stick.blunt():
            return row
        share = max(stick.error.values())
        words = f"rounding in {self.dtype} alone moves outputs by {share:.1%}; float64 decides"
        return replace(row, status="reported", message=words)


def judged(row: Row, check: Callable[[], float | None]) -> Row:
    """The row with what came of a check: nothing that a part raises goes further."""
    try:
        return replace(row, worst=check())
    except Violation as violation:
        return with_numbers(replace(row, status="failed", message=violation.message), violation)
    except NotApplicable as reason:
        return replace(row, status="not applicable", message=str(reason))
    except Inconclusive as reason:
        return replace(row, status="inconclusive", message=str(reason))
    except Exception as reason:  # whatever a plugin's part raises while it is judged is its failure, and told as such
        if said := no_room(reason):
            return replace(row, status="not run", message=said)
        if isinstance(reason, TfkitError):
            return replace(row, status="failed", message=" ".join(str(reason).split()))
        return replace(row, status="failed", message=f"raised {told(reason)}")


def with_numbers(row: Row, violation: Violation) -> Row:
    return replace(
        row, tensor=violation.tensor, index=violation.index, got=violation.got, want=violation.want, bound=violation.bound
    )


def absent(device: str) -> str:
    """Why nothing can run on a device, or nothing."""
    place = torch.device(device)
    if place.type != "cuda" or (place.index or 0) < torch.cuda.device_count():
        return ""
    return "there is no CUDA device here" if not torch.cuda.device_count() else f"there is no device {device} here"


def versions(catalogue: Catalogue) -> dict[str, str]:
    """What a table was made with."""
    plugins = {distribution: number for _, distribution, number in catalogue.plugins}
    return {
        "tfkit": version("tfkit"),
        "contract": str(CONTRACT),
        "torch": torch.__version__,
        "python": platform.python_version(),
        **plugins,
    }


def _built(model: Model | ModelSpec | Mapping[str, Any] | str | Path, seed: int, catalogue: Catalogue) -> tuple[Model, str]:
    """The model, and what its weights are."""
    if isinstance(model, Model):
        if model.spec is None:
            raise InputError(Fault("TFK073", "the model keeps no spec to be judged by", "build it with tfkit.build"))
        return copied(model).eval(), "as given"
    return disturbed(build(model, catalogue, seed=seed), seed), f"seed {seed}"


@torch.no_grad()
def disturbed(model: Model, seed: int) -> Model:
    """What is constant at the start (biases, the scales of norms) is moved, so that leaving it out would show."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        if parameter.numel() and bool((parameter == parameter.flatten()[0]).all()):
            parameter.add_((0.1 * torch.randn(parameter.shape, generator=generator)).to(parameter))
    return model


def _right(batch: Batch) -> Batch:
    """The same batch with all padding moved to the right, as lengths tell it."""
    ids, visible, segments = {}, {}, {}
    for name, shown in batch.visible.items():
        order = (~shown).to(torch.int8).argsort(dim=1, stable=True)
        ids[name], visible[name] = batch.ids[name].gather(1, order), shown.gather(1, order)
        if name in batch.segments:
            segments[name] = batch.segments[name].gather(1, order)
    return Batch(ids, visible, segments)


def _unused(subject: Subject, backend: str) -> str:
    """Why a backend served no call of the model, or nothing. A call that it refuses goes to eager."""
    reasons: list[str] = []
    for attention, index, _ in subject.model._site_table():
        choice = attention.choices[index]
        for number in choice.decided.values():
            if choice.candidates[number].kind == backend:
                return ""
    with_eager = "every call of this model went to eager"
    return "" if not subject.model.sites else "; ".join(reasons) or with_eager


def _check(devices: Sequence[str], dtypes: Sequence[str], batch: int, parts: Sequence[str]) -> None:
    if not parts or not set(parts) <= set(PARTS):
        raise InputError(Fault("TFK073", f"parts are {', '.join(parts) or 'none'}", f"some of {', '.join(PARTS)}"))
    for name in dtypes:
        if name not in DTYPES:
            raise InputError(Fault("TFK071", f"dtype {name!r} is none of {', '.join(DTYPES)}"))
    if not devices or not dtypes or batch < 1:
        raise InputError(Fault("TFK073", "a device, a dtype and a row are needed at least"))
