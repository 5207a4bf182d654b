"""Masked tokens are filled in: by plain loops for a trained run, by transformers' own pipeline for imported models."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import transformers

import encoder_tasks
import huggingface_tokenisers
from interop.models import MODELS
from kinds_task import recipe_for
from tfkit import Classifier, InputError, MaskFiller, TextGenerator, load_recipe, save
from tfkit.cli import main
from tfkit.data.text_frame import MASK_ID
from tfkit.io import model_in
from tfkit.train import train

pytestmark = pytest.mark.xdist_group("filled")
TEXT = "the old <mask> sees <mask> house"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with the two heads of BERT's pre-training."""
    folder = tmp_path_factory.mktemp("filled")
    train(load_recipe(encoder_tasks.recipe_for(folder, "masked_pairs", steps=20)), folder / "run")
    return folder / "run"


@pytest.fixture(scope="module")
def filler(run: Path) -> MaskFiller:
    return MaskFiller.load(run)


def test_each_mask_has_the_best_tokens_of_a_plain_loop(filler: MaskFiller) -> None:
    ids = [1]
    for part in TEXT.split("<mask>"):
        ids += filler.tokeniser.encode([part])[0] + [MASK_ID]
    ids[-1] = 2
    places = [at for at, number in enumerate(ids) if number == MASK_ID]
    with torch.no_grad():
        logits = filler.model.eval()(tokens=torch.tensor([ids]))["words"][0].double()
    short, found, *_ = filler.fill(["<mask>", TEXT, "the <mask>"], top=3)
    assert found.text == TEXT
    for place, candidates in zip(places, found.masks, strict=True):
        probabilities = (logits[place] - logits[place].max()).exp()
        order = sorted(range(len(probabilities)), key=lambda number: -float(probabilities[number]))[:3]
        assert [candidate.id for candidate in candidates] == order
        assert [candidate.token for candidate in candidates] == filler.tokeniser.pieces(order)
        wanted = [float(probabilities[number] / probabilities.sum()) for number in order]
        assert [candidate.probability for candidate in candidates] == pytest.approx(wanted, rel=1e-4)
        ids[place] = order[0]
    assert found.filled == filler.tokeniser.decode(ids)
    assert len(short.masks) == 1
    assert next(filler.fill([" "])).masks == ()


@pytest.mark.parametrize(("name", "tokeniser"), [("BertForMaskedLM", "bert"), ("RobertaForMaskedLM", "roberta")])
def test_an_imported_model_agrees_with_the_pipeline_of_transformers(name: str, tokeniser: str, tmp_path: Path) -> None:
    theirs = getattr(huggingface_tokenisers, tokeniser)(tmp_path)
    family, options = MODELS[name]
    torch.manual_seed(1)
    model = getattr(transformers, name)(getattr(transformers, f"{family}Config")(**{**options, "vocab_size": len(theirs)}))
    for parameter in model.parameters():
        parameter.data.normal_(0.0, 0.4)
    for part in (model.eval(), theirs):
        part.save_pretrained(tmp_path / "hf")
    assert main(["import", str(tmp_path / "hf"), "-o", str(tmp_path / "model")]) == 0
    mask = theirs.mask_token
    texts = [f"A man {mask} the piano.", f"{mask} dog runs {mask} the snow"]
    judge = transformers.pipeline("fill-mask", model=model, tokenizer=theirs, top_k=4)
    for text, found in zip(texts, MaskFiller.load(tmp_path / "model").fill(texts, top=4), strict=True):
        wanted = judge(text)
        wanted = wanted if isinstance(wanted[0], list) else [wanted]
        for candidates, rows in zip(found.masks, wanted, strict=True):
            assert [candidate.id for candidate in candidates] == [row["token"] for row in rows]
            assert [candidate.probability for candidate in candidates] == pytest.approx(
                [row["score"] for row in rows], rel=1e-4
            )


def test_the_command_prints_a_line_for_each_token(run, filler, typed, capsys):
    (found,) = filler.fill([TEXT], top=2)
    rows = [
        f"1\t{number}\t{candidate.token}\t{candidate.probability:.4f}\n"
        for number, candidates in enumerate(found.masks, 1)
        for candidate in candidates
    ]
    assert main(["fill", str(run), "--text", TEXT, "--top", "2"]) == 0
    assert capsys.readouterr().out == "".join(rows)

    def filled(*words: str) -> None:
        typed(f"{TEXT}\n\nno mask\n")
        assert main(["fill", str(run), "--top", "2", *words]) == 2

    filled()
    captured = capsys.readouterr()
    assert captured.out == "".join(rows)
    assert captured.err.startswith("<stdin>:3:1: TFK138 the text has no mask; write `<mask>` where a token is to be filled in")
    filled("--json")
    first, blank = map(json.loads, capsys.readouterr().out.splitlines()[:2])
    assert first["filled"] == found.filled
    assert [row["token"] for row in first["masks"][1]] == [candidate.token for candidate in found.masks[1]]
    assert blank == {"line": 2, "text": "", "filled": "", "masks": []}


def test_what_cannot_be_filled_is_refused(run, filler, tmp_path):
    with pytest.raises(InputError, match="TFK138 text 2 has no mask; write `<mask>` where a token is to be filled in"):
        list(filler.fill(["<mask>", "[MASK]"]))
    with pytest.raises(InputError, match="TFK138 text 1 has 43 tokens, and the model reads 40"):
        list(filler.fill(["<mask> " * 41]))
    with pytest.raises(InputError, match="TFK138 text 1 has 14 tokens, and the model reads 9"):
        list(MaskFiller(filler.model, filler.tokeniser, max_length=9).fill(["<mask>" * 12]))
    with pytest.raises(InputError, match="TFK078 top is 1001; it is a whole number from 1 to 1,000"):
        list(filler.fill(["<mask>"], top=1001))
    recipe = load_recipe(recipe_for(tmp_path, "language"), ["stopping.max_steps=1"])
    train(recipe, tmp_path / "language")
    with pytest.raises(InputError, match=r"TFK107 .* is no model that fills in masked tokens: it continues a prompt"):
        MaskFiller.load(tmp_path / "language")
    without = {"tokeniser.json": (model_in(tmp_path / "language") / "tokeniser.json").read_text()}
    (tmp_path / "other").mkdir()
    masked = load_recipe(recipe_for(tmp_path / "other", "masked"), ["stopping.max_steps=1"])
    train(masked, tmp_path / "masked")
    save(MaskFiller.load(tmp_path / "masked").model, tmp_path / "bare", texts=without)
    with pytest.raises(InputError, match="TFK138 the tokeniser has no mask token"):
        MaskFiller.load(tmp_path / "bare")


def test_texts_with_many_candidates_are_read_in_small_groups(filler: MaskFiller, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each character may be a mask, and each mask has `top` tokens."""
    monkeypatch.setattr("tfkit.text.mask_filler.MAX_GROUP", 60)
    sizes: list[int] = []
    whole = MaskFiller._fill_chunk
    monkeypatch.setattr(MaskFiller, "_fill_chunk", lambda self, rows, top: sizes.append(len(rows)) or whole(self, rows, top))
    list(filler.fill(["<mask>"] * 6, top=5))
    assert sizes == [2, 2, 2]


def test_other_commands_point_here(run):
    for other in (TextGenerator, Classifier):
        with pytest.raises(InputError, match=r"it fills in masked tokens; use `tfkit fill`, in Python tfkit.MaskFiller"):
            other.load(run)
