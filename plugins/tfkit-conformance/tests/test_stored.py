"""What can be replayed, and what is said of anything else."""

import json
import os
from dataclasses import asdict

import pytest

import reported
from tfkit import InputError, TfkitError
from tfkit_conformance.process import child
from tfkit_conformance.process.stored import Stored, read_stored, replay_data
from tfkit_conformance.report import SUITE

CASE = {"B": 1, "Q": 4, "K": 18}
LAW = {
    "suite": SUITE,
    "slot": "norm",
    "name": "acme.norm",
    "law": "tokens",
    "at": {},
    "dtype": "float32",
    "device": "cpu",
    "seed": 3,
}


@pytest.fixture
def stored(tmp_path):
    def write(data, name=None, device=None):
        path = tmp_path / "stored.json"
        path.write_text(data if isinstance(data, str) else json.dumps(data))
        return read_stored(str(path), name, device)

    return write


def test_every_finding_of_a_report(stored):
    expected = Stored(
        "backend", "acme.flash", "support", CASE, "cpu", {}, "query row 3 of batch row 1 sees key 17; it must not"
    )
    assert stored(reported.wrong()) == [expected]
    assert stored(reported.right()) == []


def test_another_part_and_another_device_are_taken_from_the_command_line(stored):
    [found] = stored(reported.wrong(options={"block": 16}), "acme.other", "cuda:1")
    assert (found.name, found.device, found.options) == ("acme.other", "cuda:1", None)
    [found] = stored(reported.wrong(options={"block": 16}), "acme.flash")
    assert found.options == {"block": 16}


def test_a_finding_alone_needs_a_name(stored):
    [finding] = reported.wrong()["findings"]
    assert stored(finding, "acme.flash") == [Stored("backend", "acme.flash", "support", CASE, "cpu", None, finding["message"])]
    with pytest.raises(InputError, match=r"TFK095.*names no part"):
        stored(finding)


def test_a_case_alone(stored):
    assert stored({"backend": "acme.flash", **CASE}) == [Stored("backend", "acme.flash", "", CASE)]
    assert stored({"backend": "acme.flash", "check": "support", "device": "cuda", **CASE})[0].check == "support"
    assert stored(CASE, "eager") == [Stored("backend", "eager", "", CASE)]


def test_a_case_of_a_law_names_its_part(stored):
    [found] = stored(LAW)
    assert (found.slot, found.name, found.check, found.case) == ("norm", "acme.norm", "tokens", LAW)
    assert stored({**LAW, "device": "cuda"})[0].device == "cuda"
    assert stored({"check": "tokens", "case": {**LAW, "device": "cuda"}})[0].device == "cuda"


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ("nope", "is no JSON: Expecting value"),
        ("", "is no JSON"),
        ("[" * 100000, "is no JSON"),
        ([1], "holds a list, expected a JSON object"),
        ({"suite": SUITE + 1, "findings": []}, f"is of suite {SUITE + 1}, this tfkit has suite {SUITE}"),
        ({"suite": "x", "B": 1}, "is of suite 'x'"),
        ({"findings": []}, "has findings but no `suite`"),
        ({"suite": SUITE, "findings": 3}, "`findings` is no list of objects"),
        ({"suite": SUITE, "findings": [3]}, "`findings` is no list of objects"),
        ({"suite": SUITE, "findings": [{}] * 1_001}, "has 1,001 findings, and at most 1,000 are run again"),
        ({"suite": SUITE, "findings": []}, "does not say of which part it is"),
        ({"a": 1}, "is no report, no finding and no case"),
        ({"backend": "eager"}, "is no report, no finding and no case"),
        ({"case": [1]}, "`case` is no object"),
        ({"case": {}}, "names no part"),
        ({"case": {**LAW, "suite": 99}}, "is of suite 99"),
        ({"backend": 3, **CASE}, "`name` is 3, expected a text"),
        ({"backend": "x", "check": [1], **CASE}, "`check` is .1., expected a text"),
        ({"backend": "x", "options": 3, **CASE}, "`options` is no object"),
        ({"backend": "x", "device": "cuda:x", **CASE}, "`device` is 'cuda:x', expected cpu, cuda or cuda:1"),
        ({"backend": "x", "device": "cuda:" + "9" * 99, **CASE}, "`device` is 'cuda:9+[.]{3}, expected"),
        ({"check": "x" * 10**6, **LAW, "device": "y"}, "`device` is 'y'"),
        ('{"B": 1e999}', "1e999 is larger than any number"),
        ('{"B": 1, "B": 2}', "is repeated"),
    ],
)
def test_other_files_are_errors(stored, data, words):
    with pytest.raises(InputError, match=words) as caught:
        stored(data)
    [diagnostic] = caught.value.diagnostics
    assert diagnostic.code == "TFK095"
    assert diagnostic.fix


def test_files_that_cannot_be_read(tmp_path):
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00\x9f")
    for name, words in (("bytes", "not UTF-8 text"), ("nowhere", "cannot be read"), (".", "it is a directory")):
        with pytest.raises(InputError, match=words):
            read_stored(str(tmp_path / name), None, None)


@pytest.mark.parametrize("kind", ["named pipe", "device", "large"])
def test_a_file_that_is_not_small_and_regular_is_an_error_at_once(tmp_path, kind):
    os.mkfifo(tmp_path / "named pipe")
    (tmp_path / "large").touch()
    os.truncate(tmp_path / "large", 8 << 40)
    with pytest.raises(InputError, match=rf"TFK095.*cannot be read: it (is a {kind}|has more than 16,777,216 bytes)"):
        read_stored("/dev/zero" if kind == "device" else str(tmp_path / kind), None, None)


WRONG = (None, True, -1, 1.5, 10**30, "", "x", [], [1], [[1]], [{}], {}, {"a": 1})
CASES = (
    {"suite": SUITE, "slot": "norm", "name": "rms_norm", "law": "tokens", "options": {}, "dtype": "float32", "device": "cpu",
     "seed": 3, "at": {"width": 4, "tokens": 2, "scale": 0, "shift": 0}},
    {"suite": SUITE, "slot": "placement", "name": "pre", "law": "skip", "options": {}, "dtype": "float32", "device": "cpu",
     "seed": 3,
     "at": {"batch": 1, "layers": 1, "partner": 0, "role": "encoder", "sublayers": ["ffn"], "tokens": 2, "width": 4}},
    {"backend": "eager", "check": "support", "B": 1, "Q": 4, "K": 18, "offset": 0, "causal": True, "key_lengths": [3],
     "window": [1, None], "dtype": "float32", "seed": 0},
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=["norm", "placement", "backend"])
def test_a_case_with_any_value_altered_is_refused_or_passes(stored, case, catalogue, monkeypatch):
    """None of them is a bug of tfkit, nor an error of the part."""
    monkeypatch.setattr(child, "load_catalogue", lambda: catalogue)

    def again(data):
        try:
            said = child.replay({"stored": [asdict(each) for each in stored(data)], "limit": 60.0}, lambda kind, data: None)
        except TfkitError:
            return
        assert all(words == "passed" or words.startswith(("refused", "not run")) for words in said), (data, said)

    again(case)
    for key, value in case.items():
        for wrong in WRONG:
            again({**case, key: wrong})
            if isinstance(value, dict):
                for name in value:
                    again({**case, key: {**value, name: wrong}})
            if isinstance(value, list):
                again({**case, key: [wrong]})
    if "at" in case:
        again({**case, "at": {**case["at"], "width": 1 << 17, "tokens": 1 << 17}})


def test_the_exit_code_of_a_replay():
    one, bare = Stored("backend", "eager", "support", CASE), Stored("backend", "eager", "refusals", {})

    def code(stored, said):
        data = replay_data(stored, said)
        return data["exit_code"], [row["status"] for row in data["replayed"]]

    assert code([one], ["passed"]) == (0, ["passed"])
    assert code([one, one], ["passed", "support: sees key 3"]) == (1, ["passed", "failed"])
    assert code([one, one], ["killed the process (SIGSEGV)", "inconclusive: large"]) == (1, ["failed", "inconclusive"])
    assert code([bare, one], ["passed"]) == (3, ["not run", "passed"])
    assert code([one], ["inconclusive: large"]) == (3, ["inconclusive"])
    assert code([one, one], ["passed", "refused: no window"]) == (0, ["passed", "refused"])
    assert code([one, one], ["inconclusive: large", "refused: no window"]) == (3, ["inconclusive", "refused"])
    assert code([], []) == (0, [])
