"""A pretrained model that gets more pieces: ids of old ones stay, new rows are means, and the new pieces are used."""

import json

import pytest
import torch
from safetensors.torch import load_file

from tfkit import InputError, SpecError, load_recipe
from tfkit.cli import main
from tfkit.data import read_tokenisers
from tfkit.text import model_in
from tfkit.train import resume, train
from tfkit.train.checkpoint import checkpoints_in
from translation_task import write_task

pytestmark = pytest.mark.xdist_group("extension")
STILL = ["stopping={max_steps: 1}", "schedule={kind: constant, peak: 1.0e-60}", "average=null"]


@pytest.fixture(scope="module", params=["bpe", "unigram"])
def parent(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(f"parent-{request.param}")
    tokeniser = f"tokeniser={{kind: {request.param}, vocab_size: 330, byte_fallback: true}}"
    train(load_recipe(write_task(folder), [tokeniser, "stopping.max_steps=4"]), folder / "run")
    return folder / "run"


def new_task(folder):
    """The same task with words that the parent has not seen, one of them in another script."""
    path = write_task(folder)
    path.write_text(path.read_text().replace("tokeniser: {kind: bpe, vocab_size: 90, byte_fallback: false}\n", ""))
    for name in ("train.src", "train.trg"):
        text = (folder / name).read_text(encoding="utf-8").replace("dog", "zyxw").replace("hundo", "狗狗")
        (folder / name).write_text(text, encoding="utf-8")
    return path


def tokeniser_of(run):
    return read_tokenisers(run, ("source", "target"))["target"]


def test_old_ids_stay_and_new_rows_are_means_of_old_ones(parent, tmp_path, capsys):
    kind = tokeniser_of(parent).kind
    words = ["--set", "tokeniser.extend=40", "--from", str(parent)]
    for change in STILL:
        words += ["--set", change]
    assert main(["train", str(new_task(tmp_path)), "-o", str(tmp_path / "run"), *words]) == 0
    out = capsys.readouterr().err
    old, new = tokeniser_of(parent), tokeniser_of(tmp_path / "run")
    added = new.size - old.size
    assert (8 if kind == "bpe" else 3) <= added <= 40  # the text has few words, and so few pieces
    assert f"  extended: source.embedding.weight: {old.size:,} rows are loaded, {added} new ones are means" in out
    assert new.pieces(range(old.size)) == old.pieces(range(old.size))
    pieces = new.pieces(range(old.size, new.size))
    assert kind == "unigram" or any("zyx" in piece for piece in pieces)
    assert any("狗" in piece for piece in pieces)
    before, after = (load_file(model_in(run) / "model.safetensors") for run in (parent, tmp_path / "run"))
    table, wide = before["nodes.source.embedding.weight"], after["nodes.source.embedding.weight"]
    assert torch.equal(wide[: old.size], table)
    raw = {number: piece for piece, number in new.vocabulary.items()}
    for number in range(old.size, new.size):
        text = raw[number]
        if kind == "bpe" or not text.startswith("▁"):
            spelled = spelled_by(old, text)
        else:
            [spelled] = old.encode([text.removeprefix("▁")])
        if spelled is not None:
            mean = sum(table[each].double() for each in spelled) / len(spelled)
            torch.testing.assert_close(wide[number].double(), mean, rtol=1e-5, atol=1e-6)
    text = "the zyxw sees"
    [short], [long] = new.encode([text]), old.encode([text])
    assert len(short) < len(long) or kind == "unigram"
    assert new.decode(short) == text


def spelled_by(old, piece):
    """The old ids of a piece: merges in the order of the old model, bytes for what it does not have. None for unigram."""
    model = json.loads(old.to_json())["model"]
    if model["type"] != "BPE":
        return None
    parts = list(piece)
    for one, other in model["merges"]:
        at = 0
        while at < len(parts) - 1:
            if (parts[at], parts[at + 1]) == (one, other):
                parts[at : at + 2] = [one + other]
            at += 1
    vocab = model["vocab"]
    return [
        number
        for part in parts
        for number in ([vocab[part]] if part in vocab else [vocab[f"<0x{byte:02X}>"] for byte in part.encode()])
    ]


def test_a_file_of_pieces_and_an_exact_resumption(parent, tmp_path):
    (tmp_path / "pieces.txt").write_text("▁zyxw\n\n狗狗\nhouse\n", encoding="utf-8")
    path = new_task(tmp_path)
    changes = [f"pretrained={parent}", f"tokeniser.extend={tmp_path / 'pieces.txt'}", "validation.every_steps=10"]
    train(load_recipe(path, [*changes, "stopping.max_steps=16"]), tmp_path / "whole")
    new = tokeniser_of(tmp_path / "whole")
    assert {"▁zyxw", "狗狗"} <= set(new.pieces(range(new.size)))
    assert "▁zyxw" in new.pieces(new.encode(["the zyxw"])[0])
    assert "狗狗" in new.pieces(new.encode(["la 狗狗"])[0])
    train(load_recipe(path, [*changes, "stopping.max_steps=9"]), tmp_path / "halves")
    resume(tmp_path / "halves", overrides=["stopping.max_steps=16"])
    mine, theirs = (load_file(checkpoints_in(tmp_path / run / "checkpoints")[-1] / "model.safetensors")
                    for run in ("whole", "halves"))  # fmt: skip
    assert all(torch.equal(mine[key], theirs[key]) for key in mine)


@pytest.mark.parametrize("place", ["mine", "theirs"])
def test_a_line_that_is_no_piece_is_quoted_only_beside_the_recipe(place, parent, tmp_path):
    for name in ("mine", "theirs"):
        (tmp_path / name).mkdir()
    path = new_task(tmp_path / "mine")
    kind = tokeniser_of(parent).kind
    (tmp_path / place / "pieces.txt").write_text("hunter2 secret\n")
    path.write_text(f"{path.read_text()}pretrained: {parent}\ntokeniser: {{kind: {kind}, extend: ../{place}/pieces.txt}}\n")
    with pytest.raises(InputError, match=rf"{place}/pieces.txt:1:1: TFK105") as caught:
        train(load_recipe(path), tmp_path / "run")
    assert ("secret" in str(caught.value)) == (place == "mine")


def test_new_rows_below_adapters_are_trained_and_saved(parent, tmp_path):
    import tfkit

    changes = [f"pretrained={parent}", "tokeniser.extend=6", "lora={rank: 2}", "stopping.max_steps=3"]
    train(load_recipe(new_task(tmp_path), changes), tmp_path / "run")
    adapter = load_file(model_in(tmp_path / "run") / "adapter_model.safetensors")
    table = adapter["base_model.model.nodes.source.embedding.weight"]
    assert torch.equal(tfkit.load(tmp_path / "run").state_dict()["nodes.source.embedding.weight"], table)
    assert len(table) == tokeniser_of(tmp_path / "run").size


def test_new_symbols_get_the_mean_of_the_pieces_that_spelled_them(parent, tmp_path):
    changes = [f"pretrained={parent}", "tokeniser.symbols=['<2x>', '<2y>']", "tokeniser.extend=3", *STILL]
    train(load_recipe(new_task(tmp_path), changes), tmp_path / "run")
    old, new = tokeniser_of(parent), tokeniser_of(tmp_path / "run")
    assert new.symbols == ("<2x>", "<2y>")
    assert new.pieces([old.size, old.size + 1]) == ["<2x>", "<2y>"]
    [ids] = new.encode(["<2x> the old<2y>cat"])
    assert [piece for piece in new.pieces(ids) if "<" in piece] == ["<2x>", "<2y>"]
    assert new.decode(ids) == "<2x> the old<2y>cat"
    before, after = (load_file(model_in(run) / "model.safetensors") for run in (parent, tmp_path / "run"))
    [spelled] = old.encode(["<2x>"])
    mean = before["nodes.source.embedding.weight"][spelled].double().mean(0)
    torch.testing.assert_close(after["nodes.source.embedding.weight"][old.size].double(), mean, rtol=1e-5, atol=1e-6)
    more = [f"pretrained={tmp_path / 'run'}", *STILL]
    train(load_recipe(tmp_path / "small-recipe.yaml", [*more, "tokeniser.symbols=['<2x>', '<2y>', '<2z>']"]), tmp_path / "more")
    assert tokeniser_of(tmp_path / "more").pieces([new.size]) == ["<2z>"]
    with pytest.raises(
        InputError, match=r"TFK117 tokeniser.symbols: `symbols: \[<2y>\]` is written, but .* has `symbols: \[<2x>, <2y>\]`"
    ):
        train(load_recipe(tmp_path / "small-recipe.yaml", [*more, "tokeniser.symbols=['<2y>']"]), tmp_path / "other")


def test_wrong_extensions_are_refused(parent, tmp_path):
    path = new_task(tmp_path)
    with pytest.raises(InputError, match=r"TFK117 tokeniser.extend: .* `pretrained`, which is not written"):
        train(load_recipe(path, ["tokeniser.extend=5"]), tmp_path / "run")
    (tmp_path / "pieces.txt").write_text("fine\nit's\n")
    with pytest.raises(InputError, match=r"pieces.txt:2:1: TFK105 `it's` is divided into .*cannot be one piece"):
        train(load_recipe(path, [f"pretrained={parent}", f"tokeniser.extend={tmp_path}/pieces.txt"]), tmp_path / "run")
    with pytest.raises(InputError, match=r"none.txt.*No such file"):
        train(load_recipe(path, [f"pretrained={parent}", f"tokeniser.extend={tmp_path}/none.txt"]), tmp_path / "run")
    for wrong in ("0", "[1]", "2.5", "true"):
        with pytest.raises(SpecError, match=r"tokeniser.extend"):
            load_recipe(path, [f"tokeniser.extend={wrong}"])
