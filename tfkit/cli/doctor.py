"""`tfkit doctor`: what is installed here, what is broken, and how to repair it."""

from __future__ import annotations

import click

from .options import READ, common, cpu_table_option
from .output import print_json, print_rich

EPILOG = """\b
The report names no user and no host: the home directory is written ~. It can
be pasted into a bug report.

\b
--json prints an object with `ok`, `problems` and `notes` (`what`, `fix`),
`tfkit`, `python`, `machine`, `torch`, `triton`, `ptxas`, `devices`,
`variables`, `extras`, `plugins` and `model`.
Exit code 0 if nothing is broken, 1 if something is, 2 for a wrong input.
"""


@click.command("doctor", epilog=EPILOG)
@click.argument(
    "subject", metavar="[MODEL]", required=False, type=READ, help="A spec or a saved model: which backends it would use here."
)
@cpu_table_option
@common
def command(subject: str | None, cpu_table: str | None, as_json: bool) -> int:
    """Say what is installed here, what is broken, and how to repair it."""
    from ..doctor import Findings, catalogue_here, diagnosis, without_home
    from .model_or_spec import named

    catalogue = catalogue_here(Findings())
    model = named(subject, catalogue) if subject is not None else None  # first: a wrong input is reported at once
    if cpu_table is not None:
        from .device import use_cpu_table

        use_cpu_table(cpu_table, "cpu")
    findings = Findings()
    data = diagnosis(findings)
    model_facts = None
    if model is not None:
        from ..doctor.torch_facts import model_here

        model_facts = model_here(model.graph, model.dtype, model.item_size, data["devices"], catalogue, findings)
    data = without_home(
        {"ok": not findings.problems, "problems": findings.problems, "notes": findings.notes, **data, "model": model_facts}
    )
    if as_json:
        print_json(data)
    else:
        from ..view.doctor_text import doctor_text

        print_rich(*doctor_text(data))
    return 0 if data["ok"] else 1
