"""`tfkit score` with several references, TER and a test against a baseline: the numbers are sacrebleu's own."""

import json
import random
import subprocess
import sys

import pytest
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.significance import PairedTest

WORDS = ["der", "die", "alte", "Hund", "Katze", "läuft", "singt", "im", "Garten", "heute", "schnell"]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder, draw = tmp_path_factory.mktemp("scored"), random.Random(5)
    reference = [draw.choices(WORDS, k=draw.randint(4, 9)) for _ in range(40)]

    def write(name, changed):
        lines = [" ".join(draw.choice(WORDS) if draw.random() < changed else word for word in line) for line in reference]
        (folder / name).write_text("".join(f"{line}.\n" for line in lines))

    for name, changed in (("ref", 0), ("ref2", 0.2), ("new", 0.2), ("old", 0.4)):
        write(name, changed)
    return folder


def sacrebleu(folder, *words):
    code = "from sacrebleu.sacrebleu import main; main()"
    command = [sys.executable, "-c", code, *words, "-f", "json"]
    return json.loads(subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout)


def test_several_references_and_ter_are_those_of_sacrebleu(tfkit, files):
    scores = tfkit("score", files / "new", files / "ref", files / "ref2", "--ter", "--json").json()
    theirs = sacrebleu(files, "ref", "ref2", "-i", "new", "-m", "bleu", "chrf", "ter", "-w", "6")
    for name, of_sacrebleu in zip(("bleu", "chrf", "ter"), theirs, strict=True):
        assert scores[name]["score"] == pytest.approx(of_sacrebleu["score"], abs=1e-5)
        assert scores[name]["signature"] == of_sacrebleu["signature"]
    assert scores["bleu"]["signature"].startswith("nrefs:2|")
    assert "ter" not in tfkit("score", files / "new", files / "ref", "--json").json()


def test_the_test_against_a_baseline_is_that_of_sacrebleu(tfkit, files):
    words = ["score", files / "new", files / "ref", "--baseline", files / "old", "--resamples", 200]
    scores = tfkit(*words, "--json").json()
    old, new, reference = ((files / name).read_text().splitlines() for name in ("old", "new", "ref"))
    systems = [("old", old), ("new", new)]
    _, results = PairedTest(systems, {"bleu": BLEU(), "chrf": CHRF()}, [reference], "bs", 200)()
    for name, theirs in (("bleu", "BLEU"), ("chrf", "chrF2")):
        mine, (baseline, system) = scores[name], results[theirs]
        assert mine["score"] == pytest.approx(system.score)
        assert mine["baseline"] == pytest.approx(baseline.score)
        assert mine["p_value"] == pytest.approx(system.p_value)
        assert (mine["mean"], mine["interval"]) == pytest.approx((system.mean, system.ci))
        assert (mine["baseline_mean"], mine["baseline_interval"]) == pytest.approx((baseline.mean, baseline.ci))
        assert "|bs:200|seed:12345|" in mine["signature"]
    printed = tfkit(*words).out
    assert (
        f"{scores['bleu']['score'] - scores['bleu']['baseline']:+.2f} against {scores['bleu']['baseline']:.2f}, p = " in printed
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["new", "ref", "--resamples", "9"], "--resamples belongs to --baseline"),
        (["new", "ref", "short"], "TFK102"),
        (["new", "ref", "--baseline", "short"], "TFK102"),
        (["long", "ref", "--ter"], "long:3: the line has 301 words, and TER is computed of at most 300"),
        (["new", "ref", "blank"], "blank: no line of 40 has text"),
        (["new", "ref", "--baseline", "old", "--resamples", "999999"], "resamples is 999999"),
    ],
)
def test_what_cannot_be_scored_is_refused(tfkit, files, words, message):
    (files / "short").write_text("a\n")
    (files / "blank").write_text("\n" * 40)
    (files / "long").write_text("a\n" * 2 + "a " * 301 + "\n" + "a\n" * 37)
    done = tfkit("score", *(files / word if (files / word).exists() else word for word in words))
    assert (done.code, done.out) == (2, "")
    assert message in done.err


def test_a_seed_that_is_no_number_is_refused(tfkit, files, monkeypatch):
    monkeypatch.setenv("SACREBLEU_SEED", "many")
    done = tfkit("score", files / "new", files / "ref", "--baseline", files / "old")
    assert done.code == 2
    assert "TFK078 SACREBLEU_SEED is 'many'" in done.err
