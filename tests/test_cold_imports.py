"""What must not be imported by what: tried in a fresh interpreter."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

PROBE = "import sys; {code}; print(sorted(name for name in sys.modules if name in ('torch', 'rich', 'transformers')))"


def modules_after(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", PROBE.format(code=code)], capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.mark.parametrize(
    "code",
    [
        "import tfkit",
        "import tfkit.plugin",
        "from tfkit.catalogue import load_catalogue; load_catalogue()",
        "from tfkit.catalogue import load_catalogue; from tfkit.spec import load_spec; from tfkit.graph import graph_of; "
        "graph_of(load_spec('specs/transformer-base.yaml', load_catalogue())).parameters()",
        "from tfkit.catalogue import load_catalogue; from tfkit.spec import json_schema; json_schema(load_catalogue())",
        "from tfkit.recipe import recipe_schema; recipe_schema()",
        "import tfkit.interop.huggingface_import",
    ],
)
def test_no_torch_and_no_rich(code):
    assert modules_after(code) == "[]"


def test_the_probe_can_fail():
    assert "torch" in modules_after("import tfkit.plugin; tfkit.plugin.AttentionInputs")


def test_the_collector_of_garbage_does_not_look_at_torch():
    code = (
        "import gc; from tfkit.cli import main; main(['tag', 'nothing']); print(gc.isenabled(), gc.get_freeze_count() > 99999)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "True True\n"
