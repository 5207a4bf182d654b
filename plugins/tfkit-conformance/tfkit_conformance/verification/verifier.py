"""`verify`: a spec or a built model in, a table of proofs out.

First the parts: the model is run twice, with padding given by masks and by lengths, and each sub-layer is checked on
the inputs it really had, each attention site with every backend that it may use. Then the whole model: with each backend, in
each dtype asked for, against the plain evaluation of its spec in float64 (`truth`) and by the relations of
`verification/properties.py`; with those that declare float64 in float64 too, where rounding hides no error.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import torch

import tfkit
from tfkit import Catalogue, Diagnostic, Graph, InputError, Model, ModelSpec, TfkitError, build, graph_of, load_catalogue
from tfkit.inspection import (
    CONTRACT,
    BoundBackend,
    check_described,
    check_request,
    flash_implementation,
    max_input_lengths,
    served_requests,
)

from ..attention.case import DTYPES
from ..finding import Inconclusive, Violation
from ..raised import format_exception, no_room
from ..resolve import missing_device
from .backends import by_site, declaring, requested_backends
from .batch import MANY_ROWS, SHORT, draw, lengths_for, long_lengths
from .expected import shown_positions
from .local import local_checks
from .model_under_test import ModelUnderTest
from .properties import PROPERTIES
from .recording import Recording, record, run as outputs_of
from .rounding import Yardstick, cast, copied
from .row import Outcome, Row, VerifyReport
from .sites import site_checks
from .truth import Measured, Reference, pooled, random_towards
from .weights import shared_memory

MOST_ROWS = 2**16
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
    progress: Callable[[str], None] | None = None,
    keep: Callable[[VerifyReport], None] | None = None,
) -> VerifyReport:
    """Verifies a model: every sub-layer and the whole, with every backend that it may use.

    Args:
        model: a spec, a mapping, a path or a built model. A spec is built with the weights of `seed`; parameters that
            are constant at initialisation (biases, norms) are changed, so that a module that leaves them out is found. A built
            model is verified with its own weights.
        backends: the backends to verify, in place of those that the spec allows.
        devices: a device that is missing gives rows "not run".
        dtypes: the whole model is verified in float64 too, with the backends that declare it.
        batch: rows of the input; of three, one is whole, one padded on the right, one on the left.
        lengths: positions by input, for all that is evaluated. Without them, batches of about 25 positions, of more than 64
            and beyond the windows and distances of the model, and, with 24 rows, of less than 10 are drawn. Time grows with the
            product of lengths and batch.
        seed: of the inputs, and of the weights of a spec.
        parts: "sub-layers", "whole model", or both.
        catalogue: where names are looked up; by default all that is installed.
        progress: called with the next step in words.
        keep: called with the report so far each time a part is done; its `finished` is False.

    Returns:
        The report: one `Row` for each property at each place, and the verdict. What does not fit in memory is "not run".

    Raises:
        SpecError: the spec or a backend is wrong.
        InputError: lengths, dtypes or sizes that the model cannot have.
        BuildError: the weights do not fit in memory.

    Reference:
        The properties are in `verification/properties.py`, the tolerances in `verification/rounding.py`.
    """
    began = time.perf_counter()
    _check(devices, dtypes, batch, seed, parts)
    catalogue = catalogue or load_catalogue()
    built, words = _built(model, seed, catalogue)
    if next(built.parameters(), None) is None:
        message = "the model has no weights, and so no dtype in which it could be verified"
        raise InputError(Diagnostic("TFK073", message, "verify a model that has weights"))
    graph = graph_of(built.spec)
    chosen = lengths_for(graph, lengths)
    rows: list[Row] = []

    def report(finished: bool) -> VerifyReport:
        return VerifyReport(
            built.plan.name, built.parameter_count(), words, tuple(devices), tuple(dtypes), tuple(requested), batch,
            chosen, seed, versions(catalogue), tuple(rows), time.perf_counter() - began, backends is not None, finished,
        )  # fmt: skip

    requested, evaluated_by = requested_backends(built, backends), by_site(built, backends, catalogue)
    exact = declaring(evaluated_by, WIDE) if built.sites else set(requested)
    wide = {name: requested for name, requested in requested.items() if name in exact}
    for device in devices:
        missing = missing_device(device)
        if missing:
            rows.append(Row("whole model", "everything", "", built.plan.name, "", "", device, "not run", None, missing))
            continue
        asked: dict[str, tuple[Sequence[str], dict[str, Any]]] = dict.fromkeys(dtypes, (parts, requested))
        if WHOLE_MODEL in parts and wide and WIDE not in asked:
            asked[WIDE] = (WHOLE_MODEL,), wide
        known: list[tuple[Reference, Measured]] = []
        for dtype, (wanted, with_) in asked.items():
            try:
                run = _Run(
                    built.to(device), graph, device, dtype, with_, set(wide), evaluated_by, lengths or {}, chosen, batch, seed,
                    progress, known,
                )  # fmt: skip
            except Exception as reason:
                if not no_room(reason):
                    raise
                row = Row("whole model", "everything", "", built.plan.name, "", dtype, device, "not run")
                rows.append(replace(row, message=no_room(reason)))
                continue
            for stage in run.stages(wanted):
                rows += stage
                if keep is not None:
                    keep(report(False))
    return report(True)


class _Run:
    """One device and dtype. `requested` are the backends by name as a spec says them, `wide` those that float64 decides for."""

    def __init__(
        self, model: Model, graph: Graph, device: str, dtype: str, requested_backends: dict[str, Any], wide: set[str],
        evaluated_by: dict[str, dict[str, BoundBackend]], wanted: Mapping[str, int], lengths: dict[str, int], batch: int,
        seed: int, progress: Callable[[str], None] | None, known: list[tuple[Reference, Measured]],
    ) -> None:  # fmt: skip
        self.given, self.graph, self.device, self.dtype, self.seed = model, graph, device, dtype, seed
        self.model = cast(model, DTYPES[dtype])
        self.requested_backends, self.wide, self.by_site, self.progress = requested_backends, wide, evaluated_by, progress
        self.batch = draw(self.model, lengths, batch, seed, device)
        self.wanted, self.known = wanted, known

    def stages(self, parts: Sequence[str]) -> Iterator[list[Row]]:
        """The rows of each part of `parts`, those of the whole model backend by backend."""
        if SUB_LAYERS in parts:
            yield list(self.sub_layers())
        if WHOLE_MODEL in parts:
            yield from self.whole_model()

    def evaluated(self, row: Row, check: Callable[[], float | None]) -> Row:
        """The row with what came of a check, announced before it is made."""
        self.announce(row)
        return evaluated(row, check)

    def announce(self, row: Row) -> None:
        if self.progress is not None:
            with_ = f" with {row.backend}" if row.backend else ""
            where = f", {row.where}" if row.part == SUB_LAYERS else ""
            self.progress(f"{row.part}{with_} in {row.dtype} on {row.device}: {row.property}{where}")

    def sub_layers(self) -> Iterator[Row]:
        recordings: list[Recording] = []
        row = Row("sub-layers", "run", "", self.model.plan.name, "", self.dtype, self.device, "passed")

        def note() -> None:
            for batch, by_lengths in ((self.batch, False), (self.batch.padded_right(), True)):
                recordings.append(record(self.model, batch, by_lengths))

        ran = self.evaluated(row, note)
        if ran.status != "passed":
            yield ran
            return
        by_mask, by_lengths = recordings
        for sublayer_check in chain(
            local_checks(self.model, self.graph, by_mask),
            site_checks(by_mask, "attention, padding by mask", self.by_site, self.seed),
            site_checks(by_lengths, "attention, padding by lengths", self.by_site, self.seed),
        ):
            sublayer_row = replace(
                row,
                property=sublayer_check.property,
                rule=sublayer_check.rule,
                where=sublayer_check.where,
                backend=sublayer_check.backend,
            )
            yield self.evaluated(sublayer_row, sublayer_check.check)

    def whole_model(self) -> Iterator[list[Row]]:
        row = Row("whole model", "run", "", self.model.plan.name, "", self.dtype, self.device, "passed")
        measured: list[Measured] = []
        ran = self.evaluated(row, lambda: measured.append(self._measured()))
        if ran.status != "passed":
            yield [ran]
            return
        yield [
            replace(row, property="reference", where=node, status="not checked", message=_unchecked(reason))
            for node, reason in measured[0].unchecked.items()
        ]
        for name, requested in self.requested_backends.items():
            yield list(self._with_backend(replace(row, backend=name), requested, measured[0]))

    def _measured(self) -> Measured:
        """The truth of every batch; that of an earlier dtype serves for equal weights."""
        reference = Reference(self.graph, self.model, self.seed)
        for other, measured in self.known:
            if reference.level == other.level and all(
                torch.equal(weight, other.exact[name]) for name, weight in reference.exact.items()
            ):
                return measured.at(DTYPES[self.dtype])
        rows = self.batch.size
        truth = reference.truth(self.batch)
        longer = lengths_for(self.graph, self.wanted, long_lengths(self.graph, self.model))
        long = draw(self.model, longer, rows, self.seed + 11, self.device).padded_right()
        many = draw(self.model, lengths_for(self.graph, self.wanted, SHORT), max(MANY_ROWS, rows), self.seed + 12, self.device)
        outputs = outputs_of(self.model, self.batch) | truth.outputs
        masks = shown_positions(self.graph, self.batch)
        returned = {name: outputs[name] for name in self.model.plan.outputs}
        towards = random_towards(returned, masks, torch.Generator().manual_seed(self.seed + 1003))
        gradients = reference.gradients(self.batch, towards)
        few, long_truth, more = pooled([truth, reference.truth(long, 1), reference.truth(many, 0)])
        fresh = Measured(few, long_truth, more, gradients, reference.unchecked)
        self.known.append((reference, fresh))
        return fresh.at(DTYPES[self.dtype])

    def _with_backend(self, row: Row, requested: list[Any], measured: Measured) -> Iterator[Row]:
        subjects: list[ModelUnderTest] = []

        def ready() -> None:
            model = cast(self.given, DTYPES[self.dtype], requested)
            baseline = outputs_of(model, self.batch)
            subjects.append(
                ModelUnderTest(model, self.graph, self.batch, baseline, measured, row.backend, requested, self.seed,
                               self.device, DTYPES[self.dtype], max_input_lengths(self.graph))
            )  # fmt: skip

        ran = self.evaluated(row, ready)
        if ran.status != "passed":
            yield ran
            return
        subject = subjects[0]
        unused = _unused(subject, row.backend)
        if unused:
            yield replace(row, property="run", status="refused", message=f"it serves no call in {self.dtype}: {unused}")
            return
        for model_property in PROPERTIES:
            property_row = replace(row, property=model_property.name, rule=model_property.rule)
            evaluated_row = self.evaluated(property_row, lambda model_property=model_property: model_property.check(subject))  # type: ignore[misc]
            yield self._decided(
                evaluated_row if model_property.rule == "A10" else self._blunt(evaluated_row, subject.yardstick)
            )

    def _blunt(self, row: Row, yardstick: Yardstick) -> Row:
        """A rounded property passes in a dtype in which an error could not be distinguished from rounding: that is no proof."""
        blunt = yardstick.blunt()
        if row.status != "passed" or row.worst is None or not blunt:
            return row
        message = f"rounding in {self.dtype} alone may move `{blunt}` by {yardstick.share(blunt):.0%}"
        return replace(row, status="reported", message=message)

    def _decided(self, row: Row) -> Row:
        """What rounding hides is decided in float64, or not at all where the backend declares none."""
        if row.status != "reported":
            return row
        if row.backend in self.wide:
            return replace(row, message=f"{row.message}; float64 decides")
        return replace(row, status="inconclusive", message=f"{row.message}, and {row.backend} declares no float64 to decide in")


def evaluated(row: Row, check: Callable[[], float | None]) -> Row:
    """The row with what came of a check: nothing that a part raises goes further."""
    try:
        return replace(row, worst=check())
    except Violation as violation:
        return replace(row, status="failed", message=violation.message, **violation.numbers)
    except Outcome as outcome:
        return replace(row, status=outcome.status, worst=outcome.worst, message=str(outcome))
    except Inconclusive as reason:
        return replace(row, status="inconclusive", message=str(reason))
    except Exception as reason:  # any exception of a plugin's part is reported as its failure
        if shortage := no_room(reason):
            return replace(row, status="not run", message=shortage)
        if isinstance(reason, TfkitError):
            return replace(row, status="failed", message=" ".join(str(reason).split()))
        called = " for a call that it declares" if row.backend and row.part == SUB_LAYERS else ""
        return replace(row, status="failed", message=f"raised {format_exception(reason)}{called}")


def versions(catalogue: Catalogue) -> dict[str, str]:
    """What a table was made with."""
    plugins = {distribution: number for _, distribution, number in catalogue.plugins}
    return {
        "tfkit": tfkit.__version__,
        "contract": str(CONTRACT),
        "torch": torch.__version__,
        "python": platform.python_version(),
        **({"flash attention": implementation} if (implementation := flash_implementation()) else {}),
        **plugins,
    }


def _built(model: Model | ModelSpec | Mapping[str, Any] | str | Path, seed: int, catalogue: Catalogue) -> tuple[Model, str]:
    """The model, and what its weights are."""
    if isinstance(model, Model):
        if model.spec is None:
            raise InputError(Diagnostic("TFK073", "the model keeps no spec to be evaluated by", "build it with tfkit.build"))
        check_described(model)
        moved = [site for attention, index, site in model.attention_sites() if index not in attention.choices]
        if moved:
            message = f"`{moved[0]}` has no attention backend, because its layer was moved or added by hand"
            raise InputError(Diagnostic("TFK073", message, "put it back, or call `model.set_backend(...)`"))
        copy = copied(model).eval()
        if (message := shared_memory(model)) and not shared_memory(copy):  # a copy has parameters of its own in their place
            raise InputError(Diagnostic("TFK073", message, "give each parameter a tensor of its own"))
        return copy, "as given"
    return disturbed(build(model, catalogue, seed=seed), seed), f"seed {seed}"


@torch.no_grad()
def disturbed(model: Model, seed: int) -> Model:
    """What is constant at the start (biases, the scales of norms) is moved, so that leaving it out would show."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        if parameter.numel() and bool((parameter == parameter.flatten()[0]).all()):
            parameter.add_((0.1 * torch.randn(parameter.shape, generator=generator)).to(parameter))
    return model


def _unchecked(reason: str) -> str:
    return reason if reason.startswith("it reads") else f"no formula is known for {reason}"


def _unused(subject: ModelUnderTest, backend: str) -> str:
    """Why a backend served no call of the model, or nothing. A call that it refuses goes to eager."""
    reasons: dict[str, None] = {}
    for attention, index, _ in subject.model.attention_sites():
        choice = attention.choices[index]
        for request, served_by in served_requests(choice):
            if served_by.kind == backend:
                return ""
            for candidate in choice.candidates:
                if candidate.kind == backend:
                    reasons |= dict.fromkeys(check_request(candidate.entry, request, candidate.options).refused)
    return f"{'; '.join(reasons)}; eager serves every call" if reasons else ""


def _check(devices: Sequence[str], dtypes: Sequence[str], batch: Any, seed: Any, parts: Sequence[str]) -> None:
    if not parts or not set(parts) <= set(PARTS):
        raise InputError(Diagnostic("TFK073", f"parts are {', '.join(parts) or 'none'}", f"some of {', '.join(PARTS)}"))
    for name in dtypes:
        if name not in DTYPES:
            raise InputError(Diagnostic("TFK071", f"dtype {name!r} is none of {', '.join(DTYPES)}"))
    if not devices or not dtypes:
        raise InputError(Diagnostic("TFK073", "a device and a dtype are needed at least"))
    for name, number, low, high in (("batch", batch, 1, MOST_ROWS), ("seed", seed, 0, 2**63 - 1)):
        if type(number) is not int or not low <= number <= high:
            raise InputError(Diagnostic("TFK073", f"{name} is {number!r:.80}", f"it is a whole number from {low} to {high:,}"))
