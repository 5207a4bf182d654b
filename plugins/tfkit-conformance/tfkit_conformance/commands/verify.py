"""`tfkit verify`: a table of proofs of one model, part by part and as a whole."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tfkit import Diagnostic, StoreError
from tfkit.commands import (
    READ,
    WRITE,
    Progress,
    auto_table_option,
    check_places,
    check_sublayers,
    common,
    device,
    dtypes,
    large_option,
    lengths_by_input,
    names,
    print_json,
    print_rich,
    seed,
    set_option,
    usage_error,
    whole,
    write_whole,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tfkit import Catalogue

EPILOG = """\b
Exit codes: 0 all holds; 1 something failed; 2 the input is wrong; 3 something
was not evaluated: the device is missing, the lengths do not fit in memory, or
a part of a plugin has no formula; 130 interrupted: the results so far are
printed. -o FILE is written anew after each part and says INCOMPLETE until
all are done.
"""

WRITERS = (".md", ".csv", ".json")


def devices(text: str) -> list[str]:
    return [device(name) for name in names(text)]


@click.command("verify", epilog=EPILOG, short_help="prove a model: every sub-layer, every backend, the whole")
@click.argument("spec", type=READ, help="A spec, YAML or JSON, or a directory that `tfkit build -o` wrote.")
@set_option
@click.option("--weights", metavar="DIR", type=READ, help="Verify the spec with the weights of this saved model.")
@click.option("--backend", metavar="NAME[,NAME]", type=names, help="Backends to verify, instead of those that the spec allows.")
@auto_table_option
@click.option("--device", "places", type=devices, default="cpu", metavar="DEVICE[,DEVICE]", help="cpu, cuda, ...")
@click.option("--dtype", "kinds", type=dtypes, default="float32", metavar="DTYPE[,DTYPE]", help="Dtypes of the model.")
@click.option("--batch", type=whole, default=3, metavar="N", help="Rows: one whole, one padded right, one padded left.")
@click.option("--lengths", type=lengths_by_input, metavar="NAME=N[,NAME=N]", help="Length of each input (default: about 25).")
@click.option("--seed", "number", metavar="N", type=seed, default=0, help="Seed of the inputs, and of initial weights.")
@click.option("-o", "--output", metavar="FILE", type=WRITE, help="Also write the table to this .md, .csv or .json file.")
@large_option
@common
def command(
    spec: str, overrides: tuple[str, ...], weights: str | None, backend: list[str] | None, auto_table: str | None,
    places: list[str], kinds: list[str], batch: int, lengths: dict[str, int] | None, number: int, output: str | None,
    large: bool, as_json: bool,
) -> int:  # fmt: skip
    """Prove a model: every sub-layer with every backend, and the whole.

    Each sub-layer is checked on its inputs in a run of the model, within error bounds, and each attention site with every
    backend that the spec allows. Then the whole model is checked: outputs and gradients against its equations, evaluated in
    plain torch and float64; causal independence to the bit, decoding in chunks of any sizes, padding, batches, order of tokens,
    dropout, checkpoints. Backends that declare float64 are checked in float64 too, where rounding hides no error.
    """
    if output is not None:
        _check_place(output, (spec, auto_table))
    from tfkit.commands import catalogue_with, check_auto

    check_auto(backend, auto_table)
    catalogue = catalogue_with(auto_table)
    model = _model(spec, overrides, weights, catalogue, large)
    from ..verification import verify

    reports = []

    def keep(report: Any) -> None:
        """Write the report so far, so that the file is always complete and current."""
        reports.append(report)
        if output is not None:
            from ..view.verify_data import FILES

            write_whole(output, FILES[Path(output).suffix](report.as_data()))

    try:
        with Progress("verify") as progress:
            keep(
                verify(
                    model,
                    backends=backend,
                    devices=places,
                    dtypes=kinds,
                    batch=batch,
                    lengths=lengths,
                    seed=number,
                    catalogue=catalogue,
                    progress=progress.show,
                    keep=keep,
                )
            )
    except KeyboardInterrupt:
        print("tfkit: interrupted", file=sys.stderr)
        if reports:
            _print(reports[-1], as_json)
        return 130
    _print(reports[-1], as_json)
    return int(reports[-1].exit_code)


def _print(report: Any, as_json: bool) -> None:
    data = report.as_data()
    if as_json:
        print_json(data)
    else:
        from ..view.verify_text import verify_text

        print_rich(*verify_text(data))


def _check_place(output: str, inputs: Sequence[str | None]) -> None:
    path = Path(output)
    if path.suffix not in WRITERS:
        fix = f"for instance {path.stem or path.name}.md"
        raise usage_error(f"argument -o: a table is written as {', '.join(WRITERS)}, not `{path.name}`", fix)
    check_places((output,), inputs)


def _model(file: str, overrides: Sequence[str], weights: str | None, catalogue: Catalogue, large: bool) -> Any:
    """The spec, or a model with saved weights."""
    from tfkit import graph_of, load_spec

    saved = Path(file).is_dir()
    if saved and (overrides or weights):
        raise usage_error(f"{file} is a saved model: it has its own spec and weights", "name its spec.yaml instead")
    spec = None if saved else load_spec(file, catalogue, overrides)
    if spec is not None and not large:
        check_sublayers(spec, graph_of(spec))
    if not saved and weights is None:
        return spec
    from tfkit import load

    saved_model = load(file if weights is None else weights, catalogue=catalogue)
    if saved:
        if not large:
            check_sublayers(saved_model.spec, graph_of(saved_model.spec))
        return saved_model
    from tfkit import build

    model = build(spec, catalogue, device="meta", dtype=saved_model.dtype)  # type: ignore[arg-type]
    tensors = saved_model.state_dict()
    wanted = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    saved_shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    if wanted != saved_shapes:
        odd = sorted(name for name in wanted.keys() | saved_shapes.keys() if wanted.get(name) != saved_shapes.get(name))
        message = f"{weights}: `{odd[0]}` is {saved_shapes.get(odd[0], 'missing')}, the spec needs {wanted.get(odd[0], 'none')}"
        raise StoreError(Diagnostic("TFK082", f"{message}; {len(odd)} tensors differ", "name the spec that it was built from"))
    model.to_empty(device="cpu").load_state_dict(tensors)
    return model
