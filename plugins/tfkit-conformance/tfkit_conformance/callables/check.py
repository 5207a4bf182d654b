"""Checks a plain attention function: no plugin, and no type of tfkit in the author's code."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from torch import Tensor

from ..attention.case import Case
from ..attention.case_data import case_of
from ..finding import Finding, OutOfTime
from ..limit import time_limit
from ..report import CheckResult, ConformanceReport
from ..resolve import known_dtypes, missing_device
from ..snippets import function_snippet
from ..suite.conformance import check_backend
from ..suite.runner import Event
from .adaptor import STRIDES, FunctionCall, FunctionUnderTest, Rendering, Signature
from .dense import DENSE
from .flash import FLASH
from .locate import check_features, check_form, error_of, nearest, object_named
from .probe import SIZES, Probe, probe

INDEXED_BY_QUERY = ("output", "visible", "weights", "lse", "gradient of query")
"""Tensors whose index begins with batch row, head and query."""


def authored(function: FunctionUnderTest, finding: Finding) -> Finding:
    """The finding with the calls that its case makes and with Python that runs them."""
    if not finding.case:
        return finding
    case = case_of(finding.case)
    snippet = function_snippet(function.name, function.signature.name, sorted(function.supports), finding.case,
                               function.device, finding.check, function.dtypes)  # fmt: skip
    try:
        rendering = function.render(case.inputs(function.device))
    except Exception:  # the finding itself says what the call raised
        return replace(finding, snippet=snippet)
    lines = [_written(function, call) for call in rendering.calls[:3]]
    if len(rendering.calls) > 3:
        lines.append(f"and {len(rendering.calls) - 3} more calls")
    place = _place(function, rendering, finding, case.H // case.G)
    return replace(finding, call="\n".join([*([place] if place else []), *lines]), snippet=snippet)


def _written(function: FunctionUnderTest, call: FunctionCall) -> str:
    names = list(function.signature.names)
    before = [] if function.signature.input_layout == "" else ["module"]
    packed = ["cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k"] if len(call.arguments) > 5 else ["mask"]
    known = [*before, *names, *packed]
    parts = [f"{name}={_short(value)}" for name, value in zip(known, call.arguments, strict=False)]
    parts += [f"{name}={_short(value)}" for name, value in call.keywords.items()]
    return f"{function.name.rpartition(':')[2]}({', '.join(parts)})"


def _short(value: Any) -> str:
    if isinstance(value, Tensor) and value.dim() == 1 and len(value) <= 8:
        return f"{value.tolist()}"
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"{str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}"
    return repr(value) if isinstance(value, (bool, int, float, tuple, type(None))) else type(value).__name__


def _place(function: FunctionUnderTest, rendering: Rendering, finding: Finding, ratio: int) -> str:
    """The elements that the finding is about, by the names and in the layout of the form."""
    if finding.tensor not in INDEXED_BY_QUERY or len(finding.index) < 3:
        return ""
    b, h, i, *rest = finding.index
    element = rendering.place(b, h, i)
    form = function.signature
    if element is None:
        return ""
    number, index = element
    head = [str(part) for part in index]
    query, key, _ = form.names
    which = f"call {number + 1}, " if len(rendering.calls) > 1 else ""
    text = f"{which}layout ({', '.join(form.layout.split())}): output[{', '.join(head)}]"
    if form.input_layout:
        text = f"{which}output[{', '.join(head)}] in the layout ({', '.join(form.layout.split())})"
    elif finding.tensor == "visible" and rest and "T" not in form.layout:
        axes = form.layout.split()
        at = {"B": b, "H": h // ratio, "S": rest[0]}
        keys = ", ".join(str(at[axis]) for axis in axes if axis != "D")
        text += f", {query}[{', '.join(head)}], {key}[{keys}]"
    return text + _mask_element(rendering.calls[number], finding)


def _mask_element(call: FunctionCall, finding: Finding) -> str:
    """What a dense mask says of the pair."""
    if finding.tensor != "visible" or len(finding.index) != 4:
        return ""
    for name in ("attn_mask", "attn_bias", "mask"):
        mask = call.keywords.get(name)
        if mask is not None and len(mask.shape) == 4:
            at = tuple(place if size > 1 else 0 for place, size in zip(finding.index, mask.shape, strict=True))
            return f"; {name}[{', '.join(map(str, at))}] is {mask[at].item()}"
    return ""


ARGUMENTS = "arguments"


def signature_named(name: str | Signature) -> Signature:
    """A known signature, or an author's own as "module:name". Raises InputError."""
    if isinstance(name, Signature):
        return name
    if ":" in name:
        form = object_named(name, "--signature")
        if not isinstance(form, Signature):
            fix = "make it with tfkit_conformance.Signature"
            raise error_of(f"--signature: `{name}` is a {type(form).__name__}, not a Signature", fix)
        return form
    known = {signature.name: signature for signature in (*DENSE, *FLASH)}
    if name not in known:
        raise error_of(f"there is no signature `{name}`", nearest(name, known, "signatures"))
    return known[name]


def function_under_test(
    function: Callable[..., Any],
    signature: str | Signature,
    *,
    supports: Iterable[str] = (),
    dtypes: Iterable[str] = ("float32",),
    device: str = "cpu",
    name: str = "",
) -> FunctionUnderTest:
    """A plain function as the suite calls it.

    Args:
        function: an attention function.
        signature: its form, by name or as a `Signature`.
        supports: features of the signature.
        dtypes: of query, key and value.
        device: "cpu", "cuda" or "cuda:1".
        name: in reports; by default the function's own.

    Returns:
        The function under test; its `subject` is what `replay` and `check_backend` take.

    Raises:
        InputError: there is no such signature, feature or dtype, or the function cannot be called in this form.
    """
    form = signature_named(signature)
    named = name or f"{getattr(function, '__module__', '')}:{getattr(function, '__qualname__', type(function).__name__)}"
    asked = check_features(supports, (*form.features, STRIDES), form.name)
    under_test = FunctionUnderTest(named, function, form, asked, tuple(sorted(known_dtypes(dtypes))), device)
    check_form(named, function, form, under_test.render(SIZES.inputs()).calls[0])
    return under_test


def check_callable(
    function: Callable[..., Any],
    signature: str | Signature,
    *,
    supports: Iterable[str] | None = None,
    profile: str = "quick",
    device: str = "cpu",
    dtypes: Iterable[str] | None = None,
    seed: int = 0,
    name: str = "",
    limit: float = 60.0,
    stop_at_first: bool = False,
    event: Event = lambda check, case: None,
) -> ConformanceReport:
    """Checks an attention function against the float64 reference, by the suite of attention backends.

    Args:
        function: an attention function.
        signature: its form: "sdpa", "flash_attn", "flash_attn_varlen", "huggingface", "xformers", "additive_mask", "numpy", or
            a `Signature`.
        supports: features of the signature, such as ["causal", "gqa"]; by default, tiny calls find them.
        profile: "quick", "standard" or "deep".
        device: "cpu", "cuda" or "cuda:1".
        dtypes: of query, key and value; by default those that it takes.
        seed: of the drawn cases.
        name: in reports; by default the function's own.
        limit: seconds that one example may take.
        stop_at_first: end the run at the first finding, and do not shrink it.
        event: called with the check and the case before each example.

    Returns:
        The report. Its `raise_for_failures` fails a test; its `function` has signature, features and what the calls found.

    Raises:
        InputError: there is no such signature, feature or dtype, or the function cannot be called in this form.
    """
    asked = None if supports is None else tuple(supports)
    wanted = None if dtypes is None else tuple(sorted(known_dtypes(dtypes)))
    under_test = function_under_test(function, signature, supports=asked or (), device=device, name=name)

    @contextmanager
    def trial(case: Case) -> Iterator[None]:
        event(ARGUMENTS, case)
        with time_limit(limit):
            yield

    try:
        outcome = Probe(under_test)
        if not missing_device(device):
            outcome = probe(replace(under_test.declared(()), trial=trial), asked, wanted)
    except OutOfTime:  # the suite ends at the first call that takes as long
        outcome = Probe(replace(under_test, dtypes=wanted or under_test.signature.dtypes[:1]))
    chosen = None if profile != "quick" else [dtype for dtype in outcome.function.dtypes if dtype in ("float32", "bfloat16")]
    report = check_backend(
        outcome.function.subject, profile=profile, dtypes=chosen or outcome.function.dtypes, seed=seed, limit=limit,
        stop_at_first=stop_at_first, event=event,
    )  # fmt: skip
    return with_probe(report, outcome, probed=asked is None)


def with_probe(report: ConformanceReport, outcome: Probe, probed: bool) -> ConformanceReport:
    """The report in the author's terms, with what the probe found."""
    function, form = outcome.function, outcome.function.signature
    ignored = [
        Finding(
            ARGUMENTS, "A3", f"takes {name} and ignores it: the output is the same without it",
            case=case.as_data(), failed=1, examples=len(outcome.function.supports),
        )
        for name, case in outcome.ignored.items()
    ]  # fmt: skip
    check = CheckResult(
        ARGUMENTS, "A3", "no argument that it takes is ignored", "failed" if ignored else "passed", len(function.supports)
    )
    right = function.supports - outcome.wrong.keys()
    return replace(
        report,
        checks=(check, *report.checks) if function.supports else report.checks,
        findings=tuple(authored(function, finding) for finding in (*ignored, *report.findings)),
        function={
            "signature": form.name, "definition": form.definition, "supports": sorted(function.supports), "probed": probed,
            "refused": outcome.refused, "wrong": outcome.wrong,
            "declaration": f"--signature {form.name} --supports {','.join(sorted(right))}",
            "head_dim": str(function.head_dim), "length": str(function.length),
        },
    )  # fmt: skip
