"""The command from end to end, and what it says of wrong words and files."""

import json
import subprocess
import sys
from xml.etree import ElementTree

import pytest
import torch

import reported
import stranger
from tfkit_conformance.process import parent
from tfkit_conformance.process.parent import ChildBug
from tfkit_conformance.report import SUITE


@pytest.fixture
def acme(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(stranger.install(tmp_path / "site")))


@pytest.fixture
def answers(monkeypatch):
    """The command with another end of its pipe: what a child would have answered."""

    def answer(data):
        asked = []

        def evaluated(task, progress):
            asked.append(task)
            progress("contract", 10)
            if isinstance(data, Exception):
                raise data
            return data

        monkeypatch.setattr(parent, "evaluated", evaluated)
        return asked

    return answer


@pytest.mark.slow
def test_a_correct_part_from_end_to_end(tfkit, tmp_path):
    file, junit = tmp_path / "report.json", tmp_path / "report.xml"
    done = tfkit("conformance", "none", "--slot", "norm", "--profile", "quick", "--json", file, "--junit", junit, "--seed", 3)
    assert (done.code, done.err) == (0, "")
    assert "CONFORMANT on cpu for float32, bfloat16: none passed every check" in done.out
    report = json.loads(file.read_text())
    assert (report["verdict"], report["slot"], report["name"], report["seed"]) == ("CONFORMANT", "norm", "none", 3)
    assert all(check["examples"] for check in report["checks"])
    suite = ElementTree.parse(junit).getroot()[0]
    assert len(suite.findall("testcase")) == len(report["checks"]) + 1


@pytest.mark.slow
@pytest.mark.usefixtures("acme")
def test_a_wrong_part_is_shown_and_shown_again_by_replay(tfkit, tmp_path):
    file = tmp_path / "report.json"
    done = tfkit("conformance", "acme.doubled", "--slot", "norm", "--profile", "quick", "--dtype", "float32", "--json", file)
    assert (done.code, done.err) == (1, "")
    assert "FAILED identity" in done.out
    assert f"tfkit conformance --replay {file}" in " ".join(done.out.split())
    again = tfkit("conformance", "--replay", file, "--json", "-")
    assert again.code == 1
    rows = again.json()["replayed"]
    assert {row["status"] for row in rows} == {"failed"}
    assert [row["was"] for row in rows] == [found["message"] for found in json.loads(file.read_text())["findings"]]
    assert all(row["was"] in row["now"] for row in rows)


@pytest.mark.slow
@pytest.mark.usefixtures("acme")
@pytest.mark.parametrize(
    ("name", "code", "words"),
    [
        ("acme.gpu", 3, "NOT RUN on cpu for float32: cpu is not among its declared devices exit code 3"),
        ("acme.nonsense", 1, "`head_dim` is 8 to 4: no number is in it"),
    ],
)
def test_an_inconsistent_declaration_ends_the_run(tfkit, name, code, words):
    done = tfkit("conformance", name, "--profile", "quick")
    assert (done.code, done.err) == (code, "")
    assert words in " ".join(done.out.split())


def test_options_reach_the_suite(tfkit, answers):
    asked = answers(reported.right())
    done = tfkit(
        "conformance", "acme.flash", "--profile", "deep", "--device", "cuda:1", "--dtype", "bfloat16,float16", "--seed", "9",
        "--options", '{"block": 16}', "--limit", "2.5",
    )  # fmt: skip
    assert done.code == 0
    assert asked == [
        {
            "slot": "backend", "name": "acme.flash", "profile": "deep", "device": "cuda:1", "dtypes": ["bfloat16", "float16"],
            "options": {"block": 16}, "seed": 9, "limit": 2.5,
        }
    ]  # fmt: skip
    asked.clear()
    tfkit("conformance", "acme.flash")
    assert asked == [
        {
            "slot": "backend", "name": "acme.flash", "profile": "standard", "device": "cpu", "dtypes": None, "options": None,
            "seed": 0, "limit": 60.0,
        }
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("data", "code"), [(reported.right(), 0), (reported.wrong(), 1), (reported.incomplete(), 3), (reported.absent(), 3)]
)
def test_exit_codes_and_json_on_standard_output(tfkit, answers, data, code):
    answers(data)
    done = tfkit("conformance", "acme.flash", "--json", "-")
    assert done.code == code
    assert done.json() == json.loads(json.dumps(data))
    assert tfkit("conformance", "acme.flash").code == code


@pytest.mark.slow
def test_an_unknown_part_is_an_error(tfkit):
    done = tfkit("conformance", "egaer")
    assert (done.code, done.out) == (2, "")
    assert done.err == "TFK094 there is no attention backend `egaer`; did you mean `eager`?\n"
    done = tfkit("conformance", "egaer", "--json", "-")
    assert (done.code, done.json()["diagnostics"][0]["code"]) == (2, "TFK094")
    assert "TFK094 there is no slot `nrom`; did you mean `norm`?" in tfkit("conformance", "x", "--slot", "nrom").err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["layer_norm"], "TFK094 there is no attention backend `layer_norm`; there is a part of this name in another "
                         "slot: --slot norm"),
        (["stack", "--slot", "node"], "TFK094 the slot `node` has no checks; slots with checks: backend, "),
        (["dot", "--slot", "score"], "TFK094 the score `dot` is the dot product of the attention contract"),
        (["eager", "--options", '{"a": 1}'], "TFK010 backend `eager` has no option `a`; it has no options"),
        (["layer_norm", "--slot", "norm", "--options", '{"epps": 1}'], "has no option `epps`; did you mean `eps`?"),
        (["layer_norm", "--slot", "norm", "--options", '{"eps": "a"}'], "TFK021 options of norm `layer_norm`: eps:"),
    ],
)  # fmt: skip
def test_errors_name_the_slot_or_option_that_may_be_meant(tfkit, words, message):
    done = tfkit("conformance", *words)
    assert (done.code, done.out) == (2, "")
    assert message in done.err


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_a_part_is_not_run_on_a_missing_device(tfkit, tmp_path):
    junit = tmp_path / "report.xml"
    done = tfkit("conformance", "layer_norm", "--slot", "norm", "--device", "cuda", "--dtype", "float32", "--junit", junit)
    assert (done.code, done.err) == (3, "")
    assert "NOT RUN on cuda for float32: there is no device cuda here" in done.out
    suite = ElementTree.parse(junit).getroot()[0]
    assert suite.get("skipped") == suite.get("tests") != "1"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "TFK090 a name is missing"),
        (["eager", "--profile", "quik"], "TFK094 there is no profile `quik`; profiles: quick, standard, deep"),
        (["eager", "--dtype", "float8"], "TFK090 argument --dtype: unknown dtype `float8`"),
        (["eager", "--device", "gpu"], "TFK090 argument --device: unknown device `gpu`"),
        (["eager", "--options", "[]"], "TFK090 argument --options: a JSON object is expected"),
        (["eager", "--options", "{"], "TFK090 argument --options: a JSON object is expected"),
        (["eager", "--limit", "0"], "TFK090 argument --limit: seconds from 0.1 to 86400 are expected"),
        (["eager", "--limit", "nan"], "TFK090 argument --limit"),
        (["eager", "--jsn", "x"], "did you mean `--json`?"),
        (["eager", "--json"], "TFK090 argument --json: expected one argument"),
        (["--replay", "x", "--junit", "y"], "TFK090 --replay and --junit exclude each other"),
        (["--replay", "nowhere.json"], "TFK095 nowhere.json cannot be read"),
        (["--replay", "README.md"], "TFK095 README.md is no JSON"),
        (["eager", "--json", "x", "--junit", "./x"], "TFK081 ./x cannot be written: two outputs have this name"),
        (["--replay", "README.md", "--json", "./README.md"], "TFK081 ./README.md cannot be written: the command reads it"),
        (["--check-certificate", "README.md", "--badge", "README.md"], "README.md cannot be written: the command reads it"),
    ],
)
def test_wrong_arguments_are_errors(tfkit, words, message):
    done = tfkit("conformance", *words)
    assert (done.code, done.out) == (2, "")
    assert message in done.err


def test_a_place_that_cannot_be_written_is_reported_before_anything_is_run(tfkit, answers, tmp_path):
    asked = answers(reported.right())
    for option in ("--json", "--junit"):
        for place in (tmp_path, tmp_path / "nowhere" / "x"):
            done = tfkit("conformance", "acme.flash", option, place)
            assert done.code == 2
            assert done.err.startswith("TFK081")
            assert ("mkdir -p" in done.err) == (place != tmp_path)
    assert asked == []


def test_the_report_of_a_wrong_case_file_is_json_where_that_was_asked_for(tfkit, tmp_path):
    (tmp_path / "x").write_text("[]")
    done = tfkit("conformance", "--replay", tmp_path / "x", "--json", "-")
    assert (done.code, done.json()["diagnostics"][0]["code"]) == (2, "TFK095")
    assert tfkit("conformance", "--replay", tmp_path / "x", "--json", tmp_path / "y").err.startswith("TFK095")


def test_a_bug_is_reported_in_a_line_and_shown_on_request(tfkit, answers):
    answers(ChildBug("ValueError: odd", [("tfkit_conformance.process.child", 3)], "where it was"))
    done = tfkit("conformance", "acme.flash")
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith("TFK099 this is a bug in tfkit: ValueError: odd")
    assert "where it was" in tfkit("conformance", "acme.flash", "--traceback").err


@pytest.mark.usefixtures("acme")
def test_a_bug_of_a_plugin_names_the_plugin(tfkit, answers):
    answers(ChildBug("ValueError: odd", [("tfkit_conformance.process.child", 3), ("acme_parts", 8), ("torch", 1)], ""))
    assert "TFK056 the plugin acme-parts (acme_parts, line 8) failed: ValueError: odd" in tfkit("conformance", "acme.flash").err


@pytest.mark.slow
def test_the_command_imports_no_torch_and_no_rich_for_json():
    words = "import sys; from tfkit.cli import main; code = main(['conformance', 'egaer', '--json', '-']); "
    words += "print(code, sorted({'torch', 'rich', 'hypothesis'} & set(sys.modules)), file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", words], capture_output=True, text=True, check=True)
    assert done.stderr == "2 []\n"


def test_a_plain_function_reaches_the_suite(tfkit, answers):
    asked = answers(reported.right())
    assert (
        tfkit("conformance", "--callable", "my.kernels:attention", "--signature", "sdpa", "--supports", "causal, gqa").code == 0
    )
    assert tfkit("conformance", "--huggingface", "sdpa").code == 0
    assert [(task["name"], task["slot"], task["function"]) for task in asked] == [
        (
            "my.kernels:attention", "backend",
            {
                "target": "my.kernels:attention", "huggingface": None, "hf_kernel": None, "signature": "sdpa",
                "supports": ["causal", "gqa"],
            },
        ),
        (
            "transformers:sdpa", "backend",
            {"target": None, "huggingface": "sdpa", "hf_kernel": None, "signature": "huggingface", "supports": None},
        ),
    ]  # fmt: skip


def test_a_cache_reaches_its_checks(tfkit, answers):
    asked = answers(reported.right())
    assert tfkit("conformance", "--cache", "my.caches:Paged", "--dtype", "bfloat16").code == 0
    assert [(task["name"], task["cache"], task["dtypes"]) for task in asked] == [("my.caches:Paged", True, ["bfloat16"])]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["eager", "--cache", "a:b"], "--cache takes no NAME"),
        (["--cache", "a:b", "--slot", "norm"], "--cache takes no NAME"),
        (["--callable", "a:b"], "--callable needs --signature"),
        (["eager", "--signature", "sdpa"], "--signature and --supports describe a plain function"),
        (["eager", "--callable", "a:b", "--signature", "sdpa"], "a plain function has no NAME"),
        (["--callable", "a:b", "--huggingface", "sdpa"], "--callable and --huggingface exclude each other"),
        (["--huggingface", "sdpa", "--signature", "sdpa"], "have the signature huggingface"),
    ],
)
def test_options_of_a_plain_function_that_do_not_fit(tfkit, words, said):
    done = tfkit("conformance", *words)
    assert (done.code, done.out) == (2, "")
    assert said in done.err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("broken:attention", "importing `broken` raised ZeroDivisionError"),
        ("lists:two", "cannot be called as sdpa: too many positional arguments. Its parameters: image, text"),
    ],
)
def test_a_name_that_is_no_function_of_the_form_is_an_error_of_input(tfkit, tmp_path, monkeypatch, target, said):
    (tmp_path / "broken.py").write_text("1 / 0\n")
    (tmp_path / "lists.py").write_text("attentions = []\n\n\ndef two(image, text):\n    return image\n")
    monkeypatch.chdir(tmp_path)
    done = tfkit("conformance", "--callable", target, "--signature", "sdpa")
    assert (done.code, done.out) == (2, "")
    assert said in " ".join(done.err.split()).replace("; ", ". ")
    assert "Traceback" not in done.err


@pytest.mark.slow
def test_a_report_never_imports_the_function_that_it_names(tfkit, tmp_path, monkeypatch):
    (tmp_path / "kernels.py").write_text("open('imported', 'w').close()\n")
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "report.json"
    file.write_text(json.dumps(reported.wrong(name="kernels:attention", function={"signature": "sdpa"})))
    done = tfkit("conformance", "--replay", file)
    assert done.code == 2
    assert "name it again: --callable kernels:attention" in " ".join(done.err.split())
    assert not (tmp_path / "imported").exists()


def test_a_certificate_is_written_and_compared(tfkit, answers, tmp_path, monkeypatch):
    answers(reported.right(name="eager"))
    file = tmp_path / "eager of $HOME.certificate.json"
    assert tfkit("conformance", "eager", "--certificate", file).code == 0
    done = tfkit("conformance", "--check-certificate", file)
    assert (done.code, done.err) == (0, "")
    assert "states CONFORMANT on cpu for float32, bfloat16, profile quick, seed 7" in done.out
    assert "VALID source, declaration, versions" in done.out
    assert "a statement, not a signature" in done.out
    monkeypatch.setattr("tfkit_conformance.commands.certificate.SUITE", 99)
    done = tfkit("conformance", "--check-certificate", file)
    assert (done.code, done.err) == (1, "")
    assert f"changed: suite: {SUITE}, installed 99" in done.out
    renewal = f"OUTDATED renew it: tfkit conformance eager --profile quick --seed 7 --certificate '{file}'"
    assert renewal in " ".join(done.out.split())
    monkeypatch.undo()
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "default")
    done = tfkit("conformance", "--check-certificate", file, "--json", "-")
    assert done.code == 3
    assert (done.json()["state"], done.json()["changed"]) == ("made elsewhere", [])
    assert any(each.startswith("instruction set: ") and each.endswith(", here DEFAULT") for each in done.json()["elsewhere"])


def test_a_certificate_of_a_function_covers_its_module(tfkit, answers, tmp_path, monkeypatch):
    (tmp_path / "kernels_here.py").write_text("from torch.nn.functional import scaled_dot_product_attention as run\n")
    monkeypatch.chdir(tmp_path)
    form = {"signature": "sdpa", "supports": ["causal"], "probed": True, "refused": {}, "wrong": {}, "definition": "",
            "declaration": "", "head_dim": "1 up", "length": "1 up"}  # fmt: skip
    answers(reported.right(name="kernels_here:run", distribution="", function=form))
    words = ("--callable", "kernels_here:run", "--signature", "sdpa", "--certificate", "run.json")
    assert tfkit("conformance", *words).code == 0
    assert tfkit("conformance", "--check-certificate", "run.json", "--badge", "badge.svg").code == 0
    badge = ElementTree.parse("badge.svg").getroot()
    assert "conformant, quick (cpu)" in "".join(badge.itertext())
    (tmp_path / "kernels_here.py").write_text("def run(query, key, value):\n    return value\n")
    done = tfkit("conformance", "--check-certificate", "run.json")
    assert done.code == 1
    assert "changed: source: kernels_here is changed" in done.out
    assert "--callable kernels_here:run --signature sdpa --supports causal" in " ".join(done.out.split())


def test_another_verdict_gets_no_certificate(tfkit, answers, tmp_path):
    answers(reported.wrong(name="eager"))
    done = tfkit("conformance", "eager", "--certificate", tmp_path / "x.json")
    assert (done.code, done.err) == (1, "no certificate is written: the verdict is NONCONFORMANT\n")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--dtype", "float32", "--check-certificate", "FILE"), "--check-certificate takes no other option than --json"),
        (("eager", "--check-certificate", "FILE"), "--check-certificate takes no other option than --json"),
        (("--huggingface", "sdpa", "--certificate", "FILE"), "--huggingface and --certificate exclude each other"),
        (("--replay", "FILE", "--certificate", "FILE"), "--replay and --certificate exclude each other"),
        (("--check-certificate", "FILE"), "TFK098"),
    ],
)
def test_wrong_words_about_certificates(tfkit, tmp_path, words, message):
    (tmp_path / "notes.txt").write_text("notes")
    done = tfkit("conformance", *(str(tmp_path / "notes.txt") if word == "FILE" else word for word in words))
    assert (done.code, done.out) == (2, "")
    assert message in done.err
