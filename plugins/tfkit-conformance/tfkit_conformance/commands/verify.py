"""`tfkit verify`: a table of proofs about one model, part by part and as a whole."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfkit import Diagnostic, StoreError
from tfkit.commands import (
    Parser,
    Progress,
    add_auto_table,
    add_common,
    add_set,
    check_place,
    device,
    dtype,
    lengths_by_input,
    names,
    place,
    print_json,
    print_rich,
    reading,
    seed,
    usage_error,
    whole,
    write_whole,
)

if TYPE_CHECKING:
    from tfkit import Catalogue

SUMMARY = "prove a model: every part with every backend, and the whole"

EPILOG = """\
Every sub-layer is checked on its inputs in a run of the model, each
attention site with every backend that the spec allows, by error bounds; then
the whole model: causal independence to the bit, decoding in every chunking,
padding, batches, order of tokens, dropout, gradients, checkpoints. Backends
that declare float64 are checked in float64 too, where rounding hides no error.
-o FILE is rewritten each time a part is done, INCOMPLETE until all are.
Exit code 0 if all holds, 1 if something failed, 2 for wrong input, 3 if
something asked for could not be run: a device that is not here, or lengths
that do not fit in memory; 130 if interrupted, with what is done printed."""

WRITERS = (".md", ".csv", ".json")


def arguments(parser: Parser) -> None:
    parser.add_argument(
        "spec", metavar="SPEC", type=reading, help="a spec, YAML or JSON, or a directory that `tfkit build -o` wrote"
    )
    add_set(parser)
    parser.add_argument("--weights", metavar="DIR", type=reading, help="verify the spec with the weights of a saved model")
    parser.add_argument(
        "--backend", metavar="NAME[,NAME]", type=names, help="backends to verify, instead of those that the spec allows"
    )
    add_auto_table(parser)
    parser.add_argument(
        "--device", type=devices, default=["cpu"], metavar="DEVICE[,DEVICE]", help="cpu, cuda, ... (default cpu)"
    )
    parser.add_argument("--dtype", type=dtypes, default=["float32"], metavar="DTYPE[,DTYPE]", help="(default float32)")
    parser.add_argument(
        "--batch", type=whole, default=3, metavar="N", help="rows (default 3: whole, padded right, padded left)"
    )
    parser.add_argument(
        "--lengths", type=lengths_by_input, metavar="NAME=N[,NAME=N]", help="positions by input (default about 25)"
    )
    parser.add_argument("--seed", metavar="N", type=seed, default=0, help="of the inputs, and of weights that are not given")
    parser.add_argument("-o", "--output", metavar="FILE", type=place, help="write the table as .md, .csv or .json, too")
    add_common(parser)


def devices(text: str) -> list[str]:
    return [device(name) for name in names(text)]


def dtypes(text: str) -> list[str]:
    return [dtype(name) for name in names(text)]


def run(options: argparse.Namespace) -> int:
    if options.output is not None:
        _check_place(options.output)
    from tfkit.commands import catalogue_of, check_auto

    check_auto(options)
    catalogue = catalogue_of(options)
    model = _model(options, catalogue)
    from ..verification import verify

    reports = []

    def keep(report: Any) -> None:
        """Rewrites the file with all rows so far."""
        reports.append(report)
        if options.output is not None:
            from ..view.verify_files import FILES

            write_whole(options.output, FILES[Path(options.output).suffix](report.as_data()))

    try:
        with Progress("verify") as progress:
            keep(
                verify(
                    model,
                    backends=options.backend,
                    devices=options.device,
                    dtypes=options.dtype,
                    batch=options.batch,
                    lengths=options.lengths,
                    seed=options.seed,
                    catalogue=catalogue,
                    progress=progress.tell,
                    keep=keep,
                )
            )
    except KeyboardInterrupt:
        print("tfkit: interrupted", file=sys.stderr)
        if reports:
            _print(reports[-1], options.json)
        return 130
    _print(reports[-1], options.json)
    return int(reports[-1].exit_code)


def _print(report: Any, as_json: bool) -> None:
    data = report.as_data()
    if as_json:
        print_json(data)
    else:
        from ..view.verify_text import verify_text

        print_rich(*verify_text(data))


def _check_place(output: str) -> None:
    path = Path(output)
    if path.suffix not in WRITERS:
        fix = f"for instance {path.stem or path.name}.md"
        raise usage_error(f"argument -o: a table is written as {', '.join(WRITERS)}, not `{path.name}`", fix)
    check_place(output)


def _model(options: argparse.Namespace, catalogue: Catalogue) -> Any:
    """The spec, or a model with the weights that were saved."""
    from tfkit import load_spec

    saved = Path(options.spec).is_dir()
    if saved and (options.overrides or options.weights):
        raise usage_error(f"{options.spec} is a saved model: it has its own spec and weights", "name its spec.yaml instead")
    spec = None if saved else load_spec(options.spec, catalogue, options.overrides)
    if not saved and options.weights is None:
        return spec
    from tfkit import load

    found = load(options.spec if saved else options.weights, catalogue=catalogue)
    if saved:
        return found
    from tfkit import build

    model = build(spec, catalogue, device="meta", dtype=next(found.parameters()).dtype)  # type: ignore[arg-type]
    weights = found.state_dict()
    wanted = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    given = {name: tuple(tensor.shape) for name, tensor in weights.items()}
    if wanted != given:
        odd = sorted(name for name in wanted.keys() | given.keys() if wanted.get(name) != given.get(name))
        message = (
            f"{options.weights}: `{odd[0]}` is {given.get(odd[0], 'missing')}, the spec needs {wanted.get(odd[0], 'none')}"
        )
        raise StoreError(Diagnostic("TFK082", f"{message}; {len(odd)} tensors differ", "name the spec that it was built from"))
    model.to_empty(device="cpu").load_state_dict(weights)
    return model
