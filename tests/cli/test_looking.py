"""look from the command line."""

import re
import sys

import numpy as np
import pytest
from PIL import Image

import encoder_tasks
from image_files import bars, write_idx, write_recipe
from kinds_task import recipe_for
from tfkit import InputError, build, load, load_recipe, load_spec, save
from tfkit.cli import main
from tfkit.look import attention
from tfkit.train import train
from translation_task import write_task

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("looking")]  # its module fixture is built once
STEPS = ["stopping.max_steps=2", "validation.every_steps=2"]
RNN = """
tfkit: 1
name: plain-rnn
defaults: {d_model: 8, pad_id: 0, vocab_size: 50}
nodes:
  source:  {kind: tokens}
  target:  {kind: tokens, start_id: 1, end_id: 2}
  encoder: {kind: rnn, input: source, cell: gru, d_state: 8}
  context: {kind: pool, input: encoder, take: last}
  decoder: {kind: rnn, input: target, memory: context, cell: gru, d_state: 8}
  logits:  {kind: token_logits, input: decoder}
outputs: [logits]
"""
ATTENTIVE = RNN.replace("plain-rnn", "rnn-search").replace(
    "  context: {kind: pool, input: encoder, take: last}\n", ""
).replace("memory: context", "memory: encoder, cross_attention: {score: additive}")  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Runs of all kinds."""
    place = tmp_path_factory.mktemp("look")
    recipe = write_task(place)
    train(load_recipe(recipe, STEPS), place / "run")
    for name, text in (("plain", RNN), ("attentive", ATTENTIVE)):
        (place / "small.yaml").write_text(text)
        train(load_recipe(recipe, STEPS), place / name)
    for kind in ("language", "masked", "classification"):
        (place / kind).mkdir()
        train(load_recipe(recipe_for(place / kind, kind), STEPS), place / kind / "run")
    (place / "pairs").mkdir()
    train(load_recipe(encoder_tasks.recipe_for(place / "pairs", "pairs"), ["stopping.max_steps=2"]), place / "pairs" / "run")
    (place / "images").mkdir()
    write_idx(place / "images", packed=False)
    data = [f"data.images={place}/images/images.idx", f"data.labels={place}/images/labels.idx"]
    train(load_recipe(write_recipe(place / "images"), [*data, *STEPS]), place / "images" / "run")
    Image.fromarray(bars(1)[0][0]).save(place / "bar.png")
    return place


@pytest.fixture
def look(folder, tmp_path, capsys, monkeypatch):
    """`look("run", ...)` writes `page.html` unless told otherwise; gives the exit code, what was printed, and the page."""
    monkeypatch.chdir(folder)

    def run(*words, output="page.html"):
        code = main(["look", *words, "-o", str(tmp_path / output)])
        out, err = capsys.readouterr()
        page = tmp_path / output
        return code, out, err, page.read_text() if page.exists() and page.suffix == ".html" else ""

    return run


def saved(folder, name, place, *changes):
    """A model of a spec, with the tokeniser of a run."""
    size = load(folder / "language" / "run").plan.inputs["words"].vocab_size
    spec = load_spec(f"specs/{name}.yaml", None, ["expect=null", *(each.replace("SIZE", str(size)) for each in changes)])
    save(build(spec, seed=0), place)
    tokeniser = next((folder / "language" / "run").glob("models/*/tokeniser.json"))
    (place / "tokeniser.json").write_bytes(tokeniser.read_bytes())
    return place


@pytest.mark.parametrize(
    ("words", "sites"),
    [
        (["run", "--text", "the old dog"], 3),
        (["run", "attentive", "--text", "the old dog", "--target", "la olda hundo"], 3),
        (["language/run", "--text", "the old", "--tokens", "3"], 1),
        (["language/run", "--text", "the old", "--target", " dog"], 1),
        (["classification/run", "--text", "the old dog"], 1),
        (["pairs/run", "--text", "the dog\ta cat"], 2),
        (["masked/run", "--text", "the <mask> sees"], 1),
        (["images/run", "--image", "bar.png"], 1),
    ],
)
def test_models_of_every_kind_have_a_page(look, words, sites):
    code, out, err, page = look(*words)
    assert (code, err) == (0, "")
    assert f": {sites} attention {'site' if sites == 1 else 'sites'}\n" in out
    assert page.startswith("<!doctype html>")
    assert ("\\u003cmask" in page) == (words[0] == "masked/run")


def test_several_texts_are_on_one_page_with_their_targets(look, folder, tmp_path):
    """The weights of each text are those of a page of its own."""
    texts, targets = ["the old dog", "the cat", "a dog sees the cat"], ["la olda hundo", "la kato", "hundo vidas"]
    for name, rows in (("some.src", texts), ("some.trg", targets)):
        (tmp_path / name).write_text("".join(f"{row}\n" for row in rows))
    code, out, err, page = look("run", "attentive", *(word for text in texts for word in ("--text", text)))
    assert (code, err) == (0, "")
    assert re.findall(r"text (\d), ([^:]*): (\d)", out) == [
        (str(at), name, count) for at in (1, 2, 3) for name, count in (("small", "3"), ("rnn-search", "1"))
    ]
    assert re.findall("<option>(.*?)</option>", page) == [f"{at}. {text}" for at, text in enumerate(texts, 1)]
    files = ["--texts", str(tmp_path / "some.src"), "--targets", str(tmp_path / "some.trg")]
    code, out, _, _ = look("run", *files, "--lines", output="lines.svg")
    assert code == 0
    assert [line.removeprefix("output: ") for line in out.splitlines() if "output" in line] == targets
    figure = attention(folder / "run", text=texts, target=targets)
    for observation, text, target in zip(figure.observations, texts, targets, strict=True):
        [alone] = attention(folder / "run", text=text, target=target).observations
        assert (observation.text, observation.output) == (text, target)
        for site, expected in zip(observation.sites, alone.sites, strict=True):
            assert np.array_equal(site.weights, expected.weights)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--text", "a", "--text", "b", "--target", "c"], "the number of texts is 2, that of targets 1"),
        (["--text", "a", "--texts", "few.src"], "--text and --texts are given"),
        (["--text", "a", "--target", "b", "--targets", "few.src"], "--target and --targets are given"),
        (["--texts", "empty.src"], "empty.src has no line"),
        (["--texts", "gap.src"], "gap.src:2"),
        (["--texts", "many.src"], "many.src has more than 32 lines"),
        (["--texts", "nowhere.src"], "nowhere.src cannot be read"),
        (["--text", "dog"] * 33, "33 texts are given"),
    ],
)
def test_texts_that_cannot_be_shown_together_are_named(look, folder, words, message):
    for name, text in (("few", "a\n"), ("empty", ""), ("gap", "a\n \nb\n"), ("many", "a\n" * 33)):
        (folder / f"{name}.src").write_text(text)
    code, out, err, page = look("run", *words)
    assert (code, out, page) == (2, "", "")
    assert message in err


@pytest.mark.parametrize(("run", "text", "tabs"), [("pairs/run", "the dog", 0), ("classification/run", "the\told\tdog", 2)])
def test_the_texts_of_a_pair_have_one_tab_between_them(look, run, text, tabs):
    code, out, err, page = look(run, "--text", text)
    assert (code, out, page) == (2, "", "")
    assert f"TFK107 the text has {tabs} tabs, and one stands between the two texts" in err


def test_weights_of_an_rnn_add_up_to_one_and_those_of_a_pair_are_of_both_segments(folder):
    [observation] = attention(folder / "attentive", text="the old dog", target="la").observations
    [site] = observation.sites
    assert site.name == "decoder.0.cross_attention"
    assert site.weights.sum(-1) == pytest.approx(1, abs=1e-5)
    assert list(site.keys) == ["▁the", "▁old", "▁dog", "</s>"]
    [pair] = attention(folder / "pairs" / "run", text="the dog\ta cat").observations
    model = load(folder / "pairs" / "run").eval()
    assert pair.sites[0].keys.count("</s>") == 2
    assert [name for name, _ in pair.classes] in (["left", "right"], ["right", "left"])
    assert sum(p for _, p in pair.classes) == pytest.approx(1, abs=1e-5)
    assert pair.sites[0].weights.shape[0] == 2
    assert model.sites.keys() == {site.name for site in pair.sites}


def test_a_model_without_attention_says_so_and_shows_probabilities(look):
    code, _, err, page = look("plain", "--text", "the old dog")
    assert (code, err) == (0, "plain-rnn has no attention: the page shows probabilities of tokens only.\n")
    assert '"predictions":[{"token"' in page
    code, _, err, _ = look("plain", "--text", "the old dog", "--site", "decoder.0.cross_attention", output="other.html")
    assert code == 2
    assert "`plain-rnn` has no attention" in err
    code, _, err, _ = look("plain", "--text", "the old dog", output="heads.png")
    assert code == 2
    assert "no attention to draw" in err


def test_a_text_that_is_too_long_is_cut_visibly(look):
    code, _, err, page = look("run", "--text", "the old dog sees the cat " * 9, "--max-tokens", "12", "--beams", "1")
    assert code == 0
    notice = "small: the text has 54 tokens; the first 11 are shown, the others were cut off."
    assert notice.replace("54", re.search(r"has (\d+) tokens", err).group(1)) in err
    assert re.search(r'"notices":\["small: the text has', page)


@pytest.mark.parametrize(
    ("words", "output", "message"),
    [
        (["run", "--text", "dog", "--site", "decoder.0.cros_attention"], "p.html", "did you mean `decoder.0.cross_attention`?"),
        (["run", "--text", "dog", "--site", "decoder.*.cros_attention"], "p.html", "did you mean `decoder.0.cross_attention`?"),
        (["run"], "p.html", "nothing is given to look at"),
        (["run", "--text", "dog", "--image", "bar.png"], "p.html", "leave --image out"),
        (["run", "--text", ""], "p.html", "TFK103"),
        (["run", "--text", "dog"], "p.pdf", "write a name that ends in .html, .png or .svg"),
        (["run", "--text", "dog"], "nowhere/p.html", "TFK081"),
        (["run", "--image", "bar.png"], "p.html", "write --text"),
        (["run", "--text", "dog", "--features", "bar.png"], "p.html", "leave --features out"),
        (["images/run", "--text", "dog"], "p.html", "write --image FILE"),
        (["classification/run", "--text", "dog", "--target", "x"], "p.html", "leave --target out"),
    ],
)
def test_bad_input_is_named(look, words, output, message):
    code, out, err, page = look(*words, output=output)
    assert (code, out, page) == (2, "", "")
    assert message in err


def test_a_file_is_replaced_only_with_force(look, tmp_path):
    (tmp_path / "page.html").write_text("mine")
    code, _, err, page = look("run", "--text", "dog", "--beams", "1")
    assert (code, page) == (2, "mine")
    assert "TFK080" in err
    assert look("run", "--text", "dog", "--beams", "1", "--force")[0] == 0


def test_a_picture_without_matplotlib_names_the_extra(look, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # Python takes it for not installed
    code, _, err, _ = look("run", "--text", "dog", output="heads.png")
    assert code == 2
    assert "pip install 'tfkit-core[pictures]'" in err


def test_a_model_with_positions_cuts_at_them(folder, tmp_path):
    changes = [
        "defaults.d_model=8", "defaults.attention.num_heads=2", "body.num_layers=1", "defaults.position.max_len=7",
        "tokens.vocab_size=SIZE", "tokens.end_id=2",
    ]  # fmt: skip
    saved(folder, "gpt2", tmp_path / "model", *changes)
    [observation] = attention(tmp_path / "model", text="the old dog sees the cat " * 4).observations
    assert len(observation.sites[0].keys) == 7
    assert "the first 7 are shown" in observation.notices[0]


def test_audio_is_shown_by_its_frames(folder, tmp_path):
    changes = (
        "defaults.d_model=8", "defaults.attention.num_heads=2", "defaults.ffn.d_ff=8", "audio.size=5", "encoder.num_layers=1",
        "frames.convolutions=[{d_model: 8, activation: gelu}, {d_model: 8, stride: 2, activation: gelu}]",
        "decoder.num_layers=1", "target.vocab_size=SIZE", "target.start_id=1", "target.end_id=2",
    )  # fmt: skip
    model, frames = saved(folder, "whisper-small", tmp_path / "model", *changes), tmp_path / "frames.npy"
    np.save(frames, np.random.default_rng(0).normal(size=(7, 5)))
    for target, beams in (("the dog", ()), (None, (2,))):
        [seen] = attention(model, features=frames, target=target, beams=2, tokens=3).observations
        names = {site.name: site for site in seen.sites}
        crossed = names["decoder.0.cross_attention"]
        assert crossed.keys == names["encoder.0.self_attention"].keys == ("frame 1", "frame 3", "frame 5", "frame 7")
        assert crossed.queries == tuple(each.token for each in seen.predictions)
        assert crossed.weights.sum(-1) == pytest.approx(1, abs=1e-5)
        assert bool(seen.beams) == bool(beams)
    [seen] = attention(model, features=frames, target="dog", max_tokens=6).observations
    assert [site.name for site in seen.sites] == ["decoder.0.cross_attention"]
    assert seen.notices == ("7 frames: cross-attention only. Choose other sites with --site.",)
    for wrong in (np.zeros((2, 3, 5)), np.zeros((4, 5), np.int64), np.array([None])):
        np.save(frames, wrong)
        with pytest.raises(InputError, match=r"TFK107 .*frames.npy"):
            attention(model, features=frames)


def test_an_image_and_texts_are_shown_apart_and_compared(folder, tmp_path):
    changes = (
        "text.vocab_size=SIZE", "text.d_model=8", "text.end_id=2", "text_body.num_layers=1", "text_body.attention.num_heads=2",
        "text_body.ffn.d_ff=8", "text_vector.d_model=6", "image.d_model=8", "image.size=8", "image.patch=4", "image.channels=1",
        "image_body.num_layers=1", "image_body.attention.num_heads=2", "image_body.ffn.d_ff=8", "image_vector.d_model=6",
    )  # fmt: skip
    model = saved(folder, "clip-b32", tmp_path / "model", *changes)
    (model / "images.json").write_text('{"mean": [0.5], "std": [0.5]}')
    [seen] = attention(model, text="the dog\ta cat", image=folder / "bar.png").observations
    text, image = seen.sites
    assert (text.name, text.patches, image.name, image.patches) == (
        "text_body.0.self_attention", False, "image_body.0.self_attention", True,
    )  # fmt: skip
    assert (text.keys[0], text.keys[-1], len(image.keys), seen.picture.before) == ("<s>", "</s>", 5, 1)
    scores = {name.split(", similarity ")[0]: float(name.split()[-1]) for name, _ in seen.classes}
    assert scores.keys() == {"the dog", "a cat"}
    likely, unlikely = seen.classes
    assert likely[1] / unlikely[1] == pytest.approx(np.exp(max(scores.values()) - min(scores.values())), rel=0.01)
    with pytest.raises(InputError, match="reads a text, and none was given"):
        attention(model, image=folder / "bar.png")


def test_an_answer_is_shown_by_its_ends(folder, tmp_path):
    small = ("defaults.d_model=8", "defaults.attention.num_heads=2", "defaults.ffn.d_ff=8", "encoder.num_layers=1")
    model = saved(folder, "bert-qa", tmp_path / "model", *small, "tokens.vocab_size=SIZE", "tokens.end_id=2")
    [seen] = attention(model, text="the dog\tthe old dog sees").observations
    assert [each.token for each in seen.ends] == list(seen.sites[0].keys)
    assert sum(each.start for each in seen.ends) == pytest.approx(1, abs=1e-5)
    assert sum(each.end for each in seen.ends) == pytest.approx(1, abs=1e-5)
    pairs = [(one.start * two.end, at, to) for at, one in enumerate(seen.ends) for to, two in enumerate(seen.ends) if to >= at]
    _, start, end = max(pairs)
    shown = "".join(each.token for each in seen.ends[start : end + 1] if each.token not in ("<s>", "</s>"))
    assert seen.output == shown.replace("▁", " ").strip()
