"""train, translate, score and average from the command line, as one session."""

import json
import shutil

import pytest
import torch

from tfkit import Translator
from tfkit.cli import main
from tfkit.cli.search_args import workers_of
from tfkit.cli.usage import UsageError
from tfkit.cpu.small_batch import products_here
from tfkit.inspection import product_machine
from tfkit.text import model_in
from translation_task import write_task

pytestmark = pytest.mark.xdist_group("translating")  # its module fixture is built once


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("session")
    recipe = write_task(folder)
    assert main(["train", str(recipe), "-o", str(folder / "run"), "--set", "validation.metric=chrf"]) == 0
    return folder / "run"


@pytest.mark.slow
def test_a_run_prints_its_progress_and_the_place_of_the_model(tmp_path, capsys):
    recipe = write_task(tmp_path)
    assert main(["train", str(recipe), "-o", str(tmp_path / "run"), "--set", "validation.metric=chrf"]) == 0
    out, err = capsys.readouterr()
    assert "train: 108 of 108 rows\nvalidation: 12 of 12 rows\nvocabulary: bpe, 90 ids, joint\n" in err
    assert "changed: defaults.vocab_size=90, nodes.source.end_id=2" in err
    assert "% of a batch is padding" in err
    printed = (
        "recipe: small: adam, inverse_sqrt peak 0.01 warmup_steps 20, label smoothing 0.1 (uniform), average 0.9, float32; "
    )
    assert f"{printed}stops at max_steps 24" in err
    assert "step 24, epoch" in err
    assert "chrF2" in err
    assert out.startswith(f"stopped: 24 steps are made\nmodel: {tmp_path / 'run' / 'models' / 'step-'}")
    page = (tmp_path / "run" / "curve.html").read_text()
    assert page.count("<svg") == 3
    assert "http" not in page.replace("http-equiv", "")
    assert list((tmp_path / "run" / "tensorboard").glob("events.*"))


@pytest.mark.parametrize("words", [[], ["--beams", "1"]])
def test_a_recorded_step_translates_as_an_ordinary_one(words, run, capsys, typed, recordings_on_cpu):
    """With a stand-in for the device; without it the device is named."""

    def translated(*options):
        typed("a b c\nc\n\nb a\n")
        code = main(["translate", str(run), *words, *options])
        return code, *capsys.readouterr()

    plain = translated()
    code, out, err = translated("--cuda-graphs")
    assert (code, out) == (2, "")
    assert err.startswith("TFK063 CUDA graphs need a CUDA device, and the model is on cpu")
    recordings_on_cpu()
    assert translated("--cuda-graphs") == plain
    assert "TFK063 attention weights of `decoder.0.cross_attention` are wanted" in translated("--cuda-graphs", "--alignment")[2]
    message = "TFK063 CUDA graphs are recorded for one model, and several translate together"
    assert message in translated("--cuda-graphs", str(run))[2]


def test_samples_without_a_seed_are_drawn(run, capsys, typed):
    def sampled(*seed):
        typed("a b c\n" * 6)
        assert main(["translate", str(run), "--sample", "--temperature", "9", *seed]) == 0
        return capsys.readouterr().out

    assert sampled() != sampled()
    assert sampled("--seed", "1") == sampled("--seed", "1")


def test_only_what_breaks_a_line_is_replaced(run, capsys, typed, decoded):
    text = " 10\u00a0kg\r\n\ta  b\u3000\u2028c "
    decoded(text)

    def printed(*words):
        typed("the dog\n")
        assert main(["translate", str(run), *words]) == 0
        return capsys.readouterr().out

    assert printed() == " 10\u00a0kg  \ta  b\u3000\u2028c \n"
    assert printed("--sample", "--n-best", "2").split("\n")[1].split("\t")[2:] == [" 10\u00a0kg   a  b\u3000\u2028c "]
    assert json.loads(printed("--json"))["hypotheses"][0]["text"] == text


def test_unknown_pieces_are_counted(run, capsys, typed):
    def reported(text):
        typed(text)
        assert main(["translate", str(run)]) == 0
        return capsys.readouterr().err

    assert reported("the dog\n\nthe Ω dog\ncat\nΩΣ\n") == (
        "<stdin>: 3 unknown tokens in 2 lines, the first in line 3; the vocabulary has no such piece\n"
    )
    assert reported("the dog\n\n") == ""


def test_filters_are_used(run, capsys, typed):
    def tokens(*words):
        typed("a b c\n")
        assert main(["translate", str(run), "--json", *words]) == 0
        return json.loads(capsys.readouterr().out)["hypotheses"][0]["pieces"]

    assert tokens("--filter", '{"kind": "min_tokens", "tokens": 9}')[8:]
    said = tokens("--filter", "no_repeat_ngram:size=1", "--filter", "min_tokens:tokens=9")
    assert len(said) == len(set(said)) >= 9


def test_a_model_may_have_a_search_of_its_own(run, tmp_path, capsys, typed):
    place = shutil.copytree(model_in(run), tmp_path / "model")

    def translated(*words):
        typed("a b c\nd e\n")
        assert main(["translate", str(place), *words]) == 0
        return capsys.readouterr().out

    def save(**settings):
        (place / "generation.json").write_text(json.dumps(settings))

    filters = ("--filter", "min_tokens:tokens=9", "--filter", "no_repeat_ngram:size=1")
    greedy, beams = translated("--beams", "1", *filters), translated("--beams", "3", *filters)
    short = translated("--beams", "1", "--extra-length", "1")
    power = translated("--beams", "4", "--penalty", "power", "--alpha", "2", "--filter", "min_tokens:tokens=3")
    drawn = translated("--sample", "--temperature", "9", "--seed", "1")
    save(kind="greedy", filters=[{"kind": "min_tokens", "tokens": 9}, {"kind": "no_repeat_ngram", "size": 1}])
    assert translated() == greedy != short
    assert translated("--beams", "3") == beams
    save(kind="greedy", new_tokens=2)
    assert all(len(line.split()) <= 2 for line in translated().splitlines())
    assert translated("--extra-length", "1") == short
    save(kind="beam", beams=4, length_penalty={"kind": "power", "alpha": 2.0})
    assert translated("--filter", "min_tokens:tokens=3") == power
    save(kind="sample", temperature=9.0)
    assert translated("--seed", "1") == drawn
    assert translated("--beams", "1", *filters) == greedy
    assert Translator.load(place).search.kind == "sample"
    save(kind="greedy", beams=2)
    typed("a\n")
    assert main(["translate", str(place)]) == 2
    assert "generation.json: beams is 2, which a greedy search does not read" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("no_repeat:size=2", "TFK078 there is no score filter 'no_repeat'; did you mean `no_repeat_ngram`?"),
        ("suppress", "TFK078 score filter `suppress`: ids: Field required; its options: ids"),
        ("suppress:ids", "TFK090 argument --filter: KIND:OPTION=VALUE is expected, as suppress:ids=[0,5], `suppress:ids` is"),
        ('min_tokens:{"kind": 1}', "TFK090 argument --filter: KIND:OPTION=VALUE is expected"),
        ("min_tokens:kind=3", "TFK090 argument --filter: KIND:OPTION=VALUE is expected"),
        ("min_tokens:=3", "TFK090 argument --filter: KIND:OPTION=VALUE is expected"),
        ("min_tokens:catalogue=3", "TFK078 score filter `min_tokens`: tokens: Field required; its options: tokens"),
        ('{"kind": ["min_tokens"]}', "TFK078 there is no score filter ['min_tokens']"),
        ('{"tokens": 3}', "TFK078 there is no score filter None"),
        ("{", "TFK090 argument --filter: KIND:OPTION=VALUE is expected"),
        ("suppress:ids=[90]", "TFK072 a score filter names the id 90, and the vocabulary has 90 ids; ids are 0..89"),
    ],
)
def test_wrong_filters(written, message, run, capsys, typed):
    typed("a b c\n")
    assert main(["translate", str(run), "--filter", written]) == 2
    assert capsys.readouterr().err.startswith(message)


def test_json_is_one_event_a_line(tmp_path, capsys):
    recipe = write_task(tmp_path)
    changes = ["--set", "stopping.max_steps=3", "--set", "schedule.warmup_steps=1"]
    assert main(["train", str(recipe), "-o", str(tmp_path / "run"), "--json", *changes]) == 0
    kinds = [json.loads(line)["kind"] for line in capsys.readouterr().out.splitlines()]
    assert kinds == ["start", "step", "step", "step", "validation", "checkpoint", "end"]


@pytest.mark.slow
def test_a_run_starts_from_another_and_reports_the_loaded_weights(run, tmp_path, capsys):
    spec, changes = run.parent / "small.yaml", ["--set", "model.decoder.num_layers=2", "--set", "stopping.max_steps=2"]
    files = ["--source", str(run.parent / "train.src"), "--target", str(run.parent / "train.trg")]
    assert main(["train", str(spec), *files, "--from", str(run), "-o", str(tmp_path / "run"), *changes]) == 0
    err = capsys.readouterr().err
    assert f"vocabulary: that of {run}, 90 ids, joint\n" in err
    assert "pretrained: 7,072 of 10,416 weights are loaded from" in err
    assert "\n  initialised, not in the pretrained model: decoder.layers.1 (26 tensors, 3,344 weights)\n" in err
    recipe = run.parent / "small-recipe.yaml"
    words = ["train", str(recipe), "--from", str(run), "-o", str(tmp_path / "more"), "--json", "--set", "stopping.max_steps=1"]
    assert main(words) == 0
    start = json.loads(capsys.readouterr().out.splitlines()[0])
    assert start["recipe"]["pretrained"] == str(run)
    assert (start["pretrained"]["loaded"], start["pretrained"]["skipped"]) == (7072, [])


@pytest.mark.slow
def test_translate_and_score(run, tmp_path, capsys, typed):
    typed("the dog\n\nbig cat")
    assert main(["translate", str(run)]) == 0
    lines = capsys.readouterr().out.split("\n")
    assert len(lines) == 4
    assert (lines[1], lines[3]) == ("", "")
    for name, text in (("out", "la hundo\nuno\n"), ("reference", "la hundo\nuno\n")):
        (tmp_path / name).write_text(text)
    assert main(["score", str(tmp_path / "out"), str(tmp_path / "reference"), "--json"]) == 0
    scores = json.loads(capsys.readouterr().out)
    assert scores["chrf"]["score"] == 100
    assert scores["bleu"]["signature"].startswith("nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:")
    assert scores["bleu_lowercase"]["signature"].startswith("nrefs:1|case:lc|")


def test_a_reference_without_text_is_no_reference(tmp_path, capsys):
    (tmp_path / "out").write_text("la hundo\nuno\n")
    (tmp_path / "empty").write_text("\n \n")
    assert main(["score", str(tmp_path / "out"), str(tmp_path / "empty")]) == 2
    assert f"TFK103 {tmp_path / 'empty'}: no line of 2 has text" in capsys.readouterr().err
    assert main(["score", str(tmp_path / "empty"), str(tmp_path / "out")]) == 0  # a model that writes nothing has a score
    assert capsys.readouterr().out.startswith("BLEU               0.00 ")


def test_a_line_to_score_has_a_limit(tmp_path, capsys):
    (tmp_path / "long").write_text("dog\n" + "a" * 100_001)
    (tmp_path / "short").write_text("dog\ncat")
    assert main(["score", str(tmp_path / "short"), str(tmp_path / "long")]) == 2
    assert "long:2: the line has 100,001 characters, and at most 100,000 are scored" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["out", "reference"])
def test_a_file_to_score_is_text(tmp_path, capsys, name):
    for each in ("out", "reference"):
        (tmp_path / each).write_text("la hundo\nuno\n")
    (tmp_path / name).write_bytes("la hundo\nuno\n".encode("utf-16-le"))
    assert main(["score", str(tmp_path / "out"), str(tmp_path / "reference")]) == 2
    assert f"{tmp_path / name}:1:2: TFK101 the file is UTF-16 or UTF-32, and not UTF-8" in capsys.readouterr().err


def test_n_best_has_a_line_of_numbers_for_each(run, capsys, typed):
    typed("the dog\n\nbig cat\n")
    assert main(["translate", str(run), "--n-best", "2", "--beams", "3"]) == 0
    rows = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert [row[0] for row in rows] == ["1", "1", "2", "3", "3"]
    assert all(len(row) == 3 for row in rows)


def test_a_translation_without_end_is_named(run, capsys, typed):
    typed("the dog\n\nbig cat\n")
    assert main(["translate", str(run), "--extra-length", "1", "--filter", "min_tokens:tokens=9", "--json"]) == 0
    out, err = capsys.readouterr()
    rows = [json.loads(line)["hypotheses"] for line in out.splitlines()]
    assert [[one["finished"] for one in row] for row in rows] == [[False], [], [False]]
    cut = [len(row[0]["pieces"]) for row in rows if row]
    assert err.splitlines() == [
        f"<stdin>:{number}: the translation was cut off after {count} tokens; --extra-length N allows more"
        for number, count in zip((1, 3), cut, strict=True)
    ]


def test_prefixes_of_one_text_and_of_a_file(run, tmp_path, capsys, typed):
    def translated(*words):
        typed("the dog\nbig cat\n")
        assert main(["translate", str(run), *words]) == 0
        return capsys.readouterr().out.splitlines()

    (tmp_path / "starts.txt").write_text("la\n\n")
    plain, both, first = translated(), translated("--prefix", "la"), translated("--prefixes", str(tmp_path / "starts.txt"))
    assert [line.split()[0] for line in both] == ["la", "la"]
    assert first == [both[0], plain[1]]
    typed("the dog sees the old cat\n\n")  # an empty line stays empty, whatever has no room there
    assert main(["translate", str(run), "--prefix", "la", "--extra-length", "1"]) == 0
    assert capsys.readouterr().out.splitlines()[1:] == [""]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--prefix", "a", "--prefixes", "b"], "TFK090 --prefix and --prefixes exclude each other; write one of them"),
        (["--prefixes", "none.txt"], "TFK100 none.txt cannot be read"),
        (["--target-language", "de"], "TFK077 the model has no token of the language 'de'; it has no language tokens"),
        (["--early-stopping", "maybe"], "TFK090 argument --early-stopping: "),
        (["--beams", "1", "--early-stopping", "true"], "TFK090 greedy search has one hypothesis, no penalty and no stopping"),
        (["--sample", "--early-stopping", "true"], "TFK090 --early-stopping belongs to beam search"),
    ],
)
def test_wrong_starts_and_stops(words, message, run, capsys, typed):
    typed("a b c\n")
    assert main(["translate", str(run), *words]) == 2
    assert capsys.readouterr().err.startswith(message)


def test_the_rule_that_stops_beams_is_read(run, tmp_path, capsys, typed):
    place = shutil.copytree(model_in(run), tmp_path / "model")
    (place / "generation.json").write_text('{"kind": "beam", "beams": 3, "early_stopping": true, "special_tokens": true}')
    search = Translator.load(place).search
    assert (search.early_stopping, search.special_tokens, search.unfinished) == (True, True, "last")
    typed("the dog\n")
    assert main(["translate", str(place), "--early-stopping", "false"]) == 0
    assert capsys.readouterr().out


def test_json_has_pieces_scores_and_attention(run, capsys, typed):
    typed("the dog\n\n")
    assert main(["translate", str(run), "--json", "--attention", "decoder.0.cross_attention"]) == 0
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    made = first["hypotheses"][0]
    assert len(made["pieces"]) == len(made["token_log_probabilities"])
    assert made["log_probability"] == pytest.approx(sum(made["token_log_probabilities"]), rel=1e-5)
    heads = made["attention"]["decoder.0.cross_attention"]
    assert {len(row) for head in heads for row in head} == {len(first["source_pieces"])}
    assert second["hypotheses"] == []


def test_alignments_are_printed_with_their_words(run, capsys, typed):
    def printed(*words):
        typed("the dog\n\n")
        assert main(["translate", str(run), *words]) == 0
        return capsys.readouterr().out.splitlines()

    first, empty = printed("--alignment")
    text, links = first.split("\t")
    assert empty == ""
    pairs = [tuple(map(int, link.split("-"))) for link in links.split()]
    assert {target for _, target in pairs} == set(range(len(text.split())))
    assert {source for source, _ in pairs} <= {0, 1}
    assert printed("--alignment-site", "decoder.*.cross_attention", "--alignment-head", "1")[0].startswith(f"{text}\t")
    best = printed("--n-best", "2", "--alignment")
    assert best[0].split("\t")[2:] == [text, links]
    assert best[2] == "2\t\t"
    (data, _) = map(json.loads, printed("--alignment", "--json"))
    assert [tuple(link) for link in data["hypotheses"][0]["alignment"]] == pairs
    assert len(data["hypotheses"][0]["piece_alignment"]) == len(data["hypotheses"][0]["pieces"])
    assert "attention" not in data["hypotheses"][0]


def test_average_of_checkpoints_and_of_models(run, tmp_path, capsys, typed):
    assert main(["average", str(run), "-o", str(tmp_path / "mean")]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'mean'}: the mean of 2: step-16, step-24\n"
    model = next((run / "models").glob("step-*"))
    assert main(["average", str(model), str(tmp_path / "mean"), "-o", str(tmp_path / "both"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["averaged"] == [str(model), str(tmp_path / "mean")]
    typed("dog\n")
    assert main(["translate", str(tmp_path / "both")]) == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["train"], 2, "a RECIPE, a SPEC or --resume is needed"),
        (["train", "{recipe}"], 2, "-o is missing"),
        (["train", "{recipe}", "-o", "{run}"], 2, "exists and holds a run; `--resume` continues it"),
        (["train", "{recipe}", "-o", "{new}", "--source", "nowhere"], 2, "nowhere cannot be read: No such file"),
        (["train", "{recipe}", "-o", "{new}", "--source", "-"], 2, "text is read several times, but standard input can be"),
        (["train", "{recipe}", "-o", "{new}", "--target", "[a"], 2, "[a cannot be read: No such file"),
        (["train", "{recipe}", "-o", "{new}", "--target", "7"], 2, "7 cannot be read: No such file"),
        (["train", "{recipe}", "-o", "{new}", "--source", "/dev/zero"], 2, "data.source: /dev/zero cannot be read: it is a"),
        (["train", "{recipe}", "-o", "{new}", "--set", "data.target={recipe}"], 2, "different numbers of lines"),
        (["train", "{recipe}", "-o", "{new}", "--set", "batching.tokens=5"], 2, "TFK109 batching.tokens: a batch has room"),
        (["train", "{recipe}", "-o", "{new}", "--set", "tokeniser.vocab_size=4"], 2, "TFK105"),
        (["train", "{recipe}", "-o", "{new}", "--set", "model.target.start_id=7"], 2, "`target` has start_id 7"),
        (["train", "{recipe}", "-o", "{new}", "--set", "data={{kind: language}}"], 2, "no file for `data.text`"),
        (["train", "{recipe}", "-o", "{new}", "--text", "x", "--set", "data.kind=masked"], 2, "data of kind `masked` need"),
        (["train", "{recipe}", "-o", "{new}", "--set", "data.held_out=500"], 2, "500 of 120 rows would be held out"),
        (["train", "{recipe}", "-o", "{new}", "--set", "batching.max_length=2"], 2, "no row of"),
        (["train", "{recipe}", "-o", "{new}", "--from", "{recipe}"], 2, "TFK117 pretrained: {recipe} is no model"),
        (["train", "--resume", "{run}", "--from", "{run}"], 2, "a resumed run keeps its data, its start"),
        (["train", "--resume", "{new}"], 2, "holds no run to resume"),
        (["train", "{recipe}", "--resume", "{run}"], 2, "--resume exclude each other; a run has a recipe"),
        (["train", "--resume", "{run}", "--source", "x"], 2, "a resumed run keeps its data, its start and its dir"),
        (["translate", "{new}"], 2, "cannot be read"),
        (["translate", "{run}", "--beams", "0"], 2, "a whole number from 1 is expected"),
        (["translate", "{run}", "--beams", "2", "--n-best", "3"], 2, "TFK078"),
        (["translate", "{run}", "--sample", "--beams", "3"], 2, "--beams belongs to beam search"),
        (["translate", "{run}", "--top-k", "3"], 2, "--top-k belongs to --sample"),
        (["translate", "{run}", "--attention", "x"], 2, "--attention needs --json"),
        (["translate", "{run}", "--alignment-head", "0"], 2, "--alignment-head needs --alignment-site"),
        (["translate", "{run}", "--alignment-site", "x"], 2, "`x` matches no attention site"),
        (["translate", "{run}", "--json", "--attention", "x"], 2, "`x` matches no attention site"),
        (["generate", "{run}", "--prompt", "x"], 2, "TFK107"),
        (["score", "{recipe}", "nowhere"], 2, "nowhere cannot be read"),
        (["score", "-", "{spec}"], 2, "`/dev/stdin` names standard input"),
        (["score", "/dev/zero", "{spec}"], 2, "it is a device, and a regular file is expected"),
        (["score", "/dev/null", "/dev/null"], 2, "it is a device"),
        (["score", "{run}", "{spec}"], 2, "it is a directory, and a regular file is expected"),
        (["score", "{recipe}", "{spec}"], 2, "different numbers of lines"),
        (["average", "{run}", "-o", "{run}"], 2, "is no saved model"),
        (["average", "{run}", "--last", "9", "-o", "{new}"], 2, "has 2 checkpoints, 9 are requested"),
        (["average", "{new}", "-o", "{new}"], 2, "has no checkpoint"),
    ],
)  # fmt: skip
def test_errors_are_reported_and_leave_no_files(run, tmp_path, capsys, words, code, message, typed):
    typed("dog\n")
    recipe = run.parent / "small-recipe.yaml"
    places = {"run": run, "recipe": recipe, "spec": run.parent / "small.yaml", "new": tmp_path / "new"}
    found = main([word.format(**places) for word in words])
    out, err = capsys.readouterr()
    printed = json.dumps(json.loads(out)) if "--json" in words else err
    assert message.format(**places) in printed
    assert "Traceback" not in printed
    assert "TFK099" not in printed
    assert found == code
    assert not (tmp_path / "new").exists()


def test_invalid_utf8_on_standard_input_is_reported(run, capsys, typed):
    typed(b"dog\ncaf\xe9\n")
    assert main(["translate", str(run)]) == 2
    assert "<stdin>:2:4: TFK101 byte 0xe9 is no UTF-8" in capsys.readouterr().err


@pytest.mark.parametrize("bad", [b"caf\xe9\n", b"d\0g\n"], ids=["latin1", "nul"])
def test_all_lines_before_a_bad_one_are_translated(run, monkeypatch, capsys, bad, typed):
    monkeypatch.setattr("tfkit.cli.line_stream.CHUNK", 4)
    lines = (run.parent / "train.src").read_text().splitlines()[:6]
    good = "".join(f"{line}\n" for line in lines)
    typed(good)
    assert main(["translate", str(run), "--beams", "1"]) == 0
    wanted = capsys.readouterr().out
    typed(good.encode() + bad + b"the dog\n")
    assert main(["translate", str(run), "--beams", "1"]) == 2
    out, err = capsys.readouterr()
    assert out == wanted
    assert out.count("\n") == 6
    assert err.startswith(f"<stdin>:7:{4 if b'c' in bad else 2}: TFK101 byte 0x")


def test_attention_has_a_weight_for_every_piece_of_its_own_sentence(run, capsys, typed):
    lines = ["dog", "the old dog sees the new house", "big cat"]
    words = ["translate", str(run), "--json", "--beams", "2", "--attention", "decoder.*.cross_attention"]
    typed("".join(f"{line}\n" for line in lines))
    assert main(words) == 0
    together = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len({len(each["source_pieces"]) for each in together}) == 3
    for number, (line, each) in enumerate(zip(lines, together, strict=True), 1):
        typed(f"{line}\n")
        assert main(words) == 0
        alone = json.loads(capsys.readouterr().out)
        assert each["source_pieces"] == alone["source_pieces"]
        (made,), (wanted,) = each["hypotheses"], alone["hypotheses"]
        assert (each["line"], made["text"], made["pieces"]) == (number, wanted["text"], wanted["pieces"])
        heads = torch.tensor(made["attention"]["decoder.0.cross_attention"])
        assert heads.shape == (2, len(made["pieces"]), len(each["source_pieces"]))
        torch.testing.assert_close(heads.sum(-1), torch.ones(heads.shape[:2]))
        torch.testing.assert_close(heads, torch.tensor(wanted["attention"]["decoder.0.cross_attention"]))


@pytest.mark.slow
def test_workers_change_nothing_but_the_time(run, capsys, typed):
    lines = "".join(f"{line}\n" for line in (run.parent / "train.src").read_text().splitlines()[:9])
    found = {}
    for workers in ("1", "3"):
        typed(lines)
        words = ["translate", str(run), "--n-best", "2", "--batch-tokens", "30", "--workers", workers]
        assert main(words) == 0
        found[workers] = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert [(number, text) for number, _, text in found["1"]] == [(number, text) for number, _, text in found["3"]]
    assert [float(score) for _, score, _ in found["1"]] == pytest.approx([float(score) for _, score, _ in found["3"]], abs=2e-4)


@pytest.mark.slow
def test_workers_that_a_backend_does_not_allow_are_refused(run, capsys, typed):
    typed("the dog\n")
    assert main(["translate", str(run), "--backend", "flex", "--workers", "2"]) == 2
    assert "needs thread-safe attention backends, and `flex` is not thread-safe" in capsys.readouterr().err
    typed("the dog\n")
    assert main(["translate", str(run), "--backend", "flex", "--workers", "1"]) == 0


def test_workers_are_threads_of_a_cpu(capsys):
    assert workers_of(None, "cpu") == torch.get_num_threads()
    assert workers_of(7, "cpu") == 7
    assert workers_of(None, "cuda") == workers_of(1, "cuda") == 1
    with pytest.raises(UsageError, match="--workers is for a CPU, not for cuda:1"):
        workers_of(2, "cuda:1")
    assert main(["translate", "model", "--workers", "0"]) == 2
    assert "--workers" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["translate"], ["serve", "--dry-run"]])
def test_a_table_of_products_is_in_use_after_it_is_named(words, run, tmp_path, capsys, typed):
    row = {
        "threads": torch.get_num_threads(),
        "outputs": 64,
        "inputs": 64,
        "rows": [1, None],
        "fastest": "mkl",
        "unpacked": "mkl",
    }
    (tmp_path / "cpu.json").write_text(json.dumps({"tfkit_products": 1, **product_machine(), "rows": [row]}))
    for table, name in (["--cpu-table", str(tmp_path / "cpu.json")], "cpu.json"), ([], None):
        typed("which dog\n")
        assert main([words[0], str(run), *words[1:], *table]) == 0
        assert products_here(())["table"] == name
    capsys.readouterr()
    typed("which dog\n")
    assert main([words[0], str(run), *words[1:], "--device", "cuda", "--cpu-table", str(tmp_path / "cpu.json")]) == 2
    assert "--cpu-table is for a CPU, not for cuda" in capsys.readouterr().err
