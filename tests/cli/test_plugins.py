"""`tfkit plugins`, `tfkit schema` and `tfkit explain`."""

import json
import types

import pytest

from tfkit import Catalogue, load_catalogue
from tfkit.attention.rules import RULES
from tfkit.catalogue import BrokenPlugin
from tfkit.errors.codes import CODES
from tfkit.plugin import Capabilities, Norm, hookimpl
from tfkit.recipe import recipe_schema
from tfkit.spec import json_schema


@pytest.fixture
def acme(installed, catalogue):
    """One more plugin, and one that is broken."""
    plugin = types.ModuleType("acme")
    entry = Norm(name="acme.scale", summary="one scale", parameters=lambda options, width: (), build="acme:build")
    plugin.tfkit_norms = hookimpl(lambda: [entry])
    more = catalogue.with_plugin(plugin, "acme")
    broken = (BrokenPlugin("flash", "tfkit-flash-attn", "ImportError: no flash_attn"),)
    found = Catalogue(more.registered, broken, more.plugins)
    installed(found)


def test_json_lists_every_entry_with_its_distribution(tfkit, acme, catalogue):
    data = tfkit("plugins", "--json").json()
    assert len(data["entries"]) == 1 + sum(len(registered) for registered in catalogue.registered.values())
    eager = next(entry for entry in data["entries"] if entry["name"] == "eager")
    assert (eager["slot"], eager["distribution"], eager["plugin"]) == ("backend", "tfkit-core", "builtin")
    assert eager["version"]
    mine = next(entry for entry in data["entries"] if entry["name"] == "acme.scale")
    assert (mine["slot"], mine["summary"], mine["distribution"]) == ("norm", "one scale", "acme")
    assert data["broken"] == [{"plugin": "flash", "distribution": "tfkit-flash-attn", "reason": "ImportError: no flash_attn"}]
    assert "backends" not in data


def test_text_shows_entries_and_broken_plugins(tfkit, acme):
    done = tfkit("plugins")
    assert done.code == 0
    lines = done.out.splitlines()
    assert any("acme.scale" in line.split()[:2] and line.endswith("acme") for line in lines)
    assert "broken: flash of tfkit-flash-attn: ImportError: no flash_attn" in lines


def test_backends_shows_every_axis(tfkit):
    done = tfkit("plugins", "--backends")
    for axis in Capabilities.model_fields:
        assert any(line.startswith(axis.replace("_", " ")) for line in done.out.splitlines()), axis
    data = tfkit("plugins", "--backends", "--json").json()
    assert {row["name"] for row in data["backends"]} >= {"eager", "sdpa", "flex"}
    assert set(Capabilities.model_fields) < set(data["backends"][0])


def test_a_broken_plugin_is_named_where_it_is_asked_for(tfkit, acme, small):
    done = tfkit("plan", small, "--backend", "flash")
    assert done.code == 2
    assert "tfkit-flash-attn, which failed to import because ImportError: no flash_attn" in done.err


def test_schema_is_printed_or_written(tfkit, tmp_path):
    done = tfkit("schema")
    assert json.loads(done.out) == json_schema(load_catalogue())
    assert tfkit("schema", "spec").out == done.out
    assert json.loads(tfkit("schema", "recipe").out) == recipe_schema()
    assert "unknown language `recpie`; did you mean `recipe`?" in tfkit("schema", "recpie").err
    place = tmp_path / "schema.json"
    place.write_text("before")
    quiet = tfkit("schema", "-o", place)
    assert (quiet.code, quiet.out, quiet.err) == (0, "", "")
    assert place.read_text() == done.out
    assert list(tmp_path.iterdir()) == [place], "no draft is left behind"


@pytest.mark.parametrize("place", [".", "no/such/directory/x.json"])
def test_a_schema_that_cannot_be_written_changes_nothing(tfkit, monkeypatch, tmp_path, place):
    done = tfkit("schema", "-o", tmp_path / place)
    assert (done.code, done.out) == (1, "")
    assert "TFK081" in done.err
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_fills_up_leaves_the_old_file(tfkit, monkeypatch, tmp_path):
    place = tmp_path / "schema.json"
    place.write_text("before")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    done = tfkit("schema", "-o", place)
    assert done.code == 1
    assert "No space left" in done.err
    assert place.read_text() == "before"
    assert list(tmp_path.iterdir()) == [place]


def test_explain_describes_every_code(tfkit):
    listed = tfkit("explain").out.splitlines()
    assert [line.split()[0] for line in listed] == [*CODES, *RULES]
    for code, entry in CODES.items():
        done = tfkit("explain", code)
        assert (done.code, done.err) == (0, "")
        assert max(map(len, done.out.splitlines())) < 180
        flat = " ".join(done.out.split())
        assert all(" ".join(part.split()) in flat for part in (code, entry.title, entry.rule, entry.wrong, entry.fix))


def test_a_code_without_its_zeros_finds_the_code(tfkit):
    done = tfkit("explain", "tfk12")
    assert (done.code, done.err) == (2, "TFK090 there is no code `tfk12`; did you mean `TFK012`?\n")
    assert "did you mean `TFK124`" in tfkit("explain", "tfk124x").err


def test_explain_as_json_and_in_small_letters(tfkit):
    data = tfkit("explain", "tfk004", "--json").json()
    assert data["code"] == "TFK004"
    assert set(data) == {"code", "title", "rule", "wrong", "fix"}
    listed = tfkit("explain", "--json").json()
    assert [entry.get("code", entry["rule"]) for entry in listed] == [*CODES, *RULES]


def test_explain_describes_every_rule_and_its_checks(tfkit):
    for number, rule in RULES.items():
        done = tfkit("explain", number.lower())
        assert (done.code, done.err) == (0, "")
        assert all(" ".join(part.split()) in " ".join(done.out.split()) for part in (number, rule.title, rule.text))
    assert "R29 fully_masked_rows" in tfkit("explain", "A5").out
    assert "R29 fully_masked_rows" in [check["name"] for check in tfkit("explain", "A5", "--json").json()["checks"]]


@pytest.mark.slow
def test_explain_finds_every_check_by_the_names_in_reports(tfkit):
    listed = tfkit("explain", "checks", "--json").json()
    names = {check["name"] for check in listed}
    assert {"support", "R19 causal_prefix", "A7 kept_share", "formula", "decoding in chunks"} <= names
    for check in listed:
        assert check["name"] in tfkit("explain", "checks").out
    for words in ("R19 causal_prefix", "r19", "causal_prefix"):
        assert "R19 causal_prefix" in tfkit("explain", *words.split()).out
    assert [check["name"] for check in tfkit("explain", "support", "of", "gradients", "--json").json()] == [
        "support of gradients"
    ]
    assert "did you mean `causal_prefix`?" in tfkit("explain", "causal_prefx").err


@pytest.mark.parametrize("code", ["TFK999", "4", "check me"])
def test_explain_refuses_unknown_words(tfkit, code):
    done = tfkit("explain", code)
    assert (done.code, done.out) == (2, "")
    assert "`tfkit explain` lists all codes" in done.err or "did you mean" in done.err
