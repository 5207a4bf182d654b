"""A model with an imported tokeniser reads what transformers' tokeniser gives, and writes what it decodes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import tfkit
from huggingface_tokenisers import MADE, PAIRS, TEXTS, m2m_100, marian, mbart
from tfkit import Classifier, InputError, Rescorer, Search, Tagger, TextGenerator, Translator, greedy
from tfkit.data import label_texts, read_huggingface
from tfkit.recipe import recipe_of
from tfkit.train import train

BODY = """
tfkit: 1
name: imported
defaults:
  {d_model: 16, vocab_size: ROWS, position: {kind: learned, max_len: 200}, placement: pre, norm: layer_norm,
   attention: {num_heads: 2}, ffn: {d_ff: 16, activation: gelu}, init: bert}
nodes:
"""
ENCODER = """
  tokens:  {kind: tokens, pad_id: PAD, segments: SEGMENTS}
  encoder: {kind: stack, input: tokens, num_layers: 1}
"""
CLASSIFIER = (
    BODY
    + ENCODER
    + """
  first:   {kind: pool, input: encoder, take: first}
  classes: {kind: classify, input: first, classes: 2}
outputs: [classes]
"""
)
TAGGER = (
    BODY
    + ENCODER
    + """
  tags: {kind: classify, input: encoder, classes: 2}
outputs: [tags]
"""
)
DECODER = (
    BODY
    + """
  tokens:  {kind: tokens, end_id: END}
  decoder: {kind: stack, input: tokens, num_layers: 1, causal: true}
  logits:  {kind: token_logits, input: decoder, share: tokens}
outputs: [logits]
"""
)
TRANSLATOR = (
    BODY
    + """
  source:  {kind: tokens, pad_id: PAD, end_id: END}
  target:  {kind: tokens, share: source, pad_id: PAD, start_id: PAD, end_id: END}
  encoder: {kind: stack, input: source, num_layers: 1}
  decoder: {kind: stack, input: target, memory: encoder, num_layers: 1, causal: true}
  logits:  {kind: token_logits, input: decoder, share: source}
outputs: [logits]
"""
)


def imported(spec: str, theirs: Any, place: Path, catalogue: tfkit.Catalogue, pairs: bool | None = None, **more: int) -> Path:
    """A model beside the tokeniser of a directory; it has 7 ids more than the tokeniser."""
    values = {"ROWS": len(theirs) + 7, "PAD": theirs.pad_token_id, "END": theirs.eos_token_id, **more}
    for name, value in values.items():
        spec = spec.replace(name, str(value))
    model = tfkit.build(tfkit.parse_spec(spec, catalogue), catalogue, seed=1)
    texts = read_huggingface(place, values["ROWS"])
    labels = {} if pairs is None else label_texts(["a", "b"], pairs)
    return tfkit.save(model, place.parent / "model", catalogue=catalogue, texts={**texts, **labels})


def saved(name: str, tmp_path: Path) -> tuple[Any, Path]:
    place = tmp_path / "theirs"
    theirs = MADE[name](place)
    theirs.save_pretrained(place)
    return theirs, place


@pytest.mark.parametrize(("name", "segments"), [("bert", 2), ("roberta", 1)])
@pytest.mark.parametrize("pairs", [False, True])
def test_a_classifier(name: str, segments: int, pairs: bool, tmp_path: Path, catalogue: tfkit.Catalogue) -> None:
    theirs, place = saved(name, tmp_path)
    classifier = Classifier.load(imported(CLASSIFIER, theirs, place, catalogue, pairs, SEGMENTS=segments), catalogue=catalogue)
    lines: list[Any] = PAIRS if pairs else [text for text in TEXTS if theirs(text, add_special_tokens=False)["input_ids"]]
    for line, found in zip(lines, classifier.classify(lines), strict=True):
        encoded = theirs(*(line if pairs else [line]), return_tensors="pt", return_token_type_ids=True)
        more = {"segments": {"tokens": encoded["token_type_ids"]}} if segments > 1 else {}
        with torch.no_grad():
            lengths = {"tokens": encoded["attention_mask"].sum(1)}  # of real tokens: `<pad>` in a text is one
            outputs = classifier.model.eval()(tokens=encoded["input_ids"], lengths=lengths, **more)
        wanted = outputs["classes"].softmax(-1)[0]
        torch.testing.assert_close(torch.tensor(found.distribution), wanted, rtol=0, atol=1e-6)
        assert found.read == encoded["input_ids"].shape[1]


def test_a_tagger(tmp_path: Path, catalogue: tfkit.Catalogue) -> None:
    theirs, place = saved("bert", tmp_path)
    tagger = Tagger.load(imported(TAGGER, theirs, place, catalogue, False, SEGMENTS=2), catalogue=catalogue)
    words = ["A", "man", "walks", "unbelievably", "中文", "x2,048"]
    encoded = theirs(words, is_split_into_words=True, return_tensors="pt")
    with torch.no_grad():
        wanted = tagger.model.eval()(tokens=encoded["input_ids"])["tags"][0].softmax(-1).max(-1)[0].tolist()
    (found,) = tagger.tag([" ".join(words)])
    firsts = [encoded.word_ids().index(number) for number in range(len(words))]
    assert found.probabilities == pytest.approx([wanted[place] for place in firsts], abs=1e-6)


@pytest.mark.parametrize("name", ["gpt2", "llama3"])
def test_a_generator(name: str, tmp_path: Path, catalogue: tfkit.Catalogue) -> None:
    theirs, place = saved(name, tmp_path)
    generator = TextGenerator.load(imported(DECODER, theirs, place, catalogue), catalogue=catalogue)
    prompts = [TEXTS[0], TEXTS[3], TEXTS[6]]
    made = generator.continue_all(prompts, Search(kind="greedy", length_factor=0.0, extra_length=8))
    for prompt, (found,) in zip(prompts, made, strict=True):
        ids = theirs(prompt, return_tensors="pt")["input_ids"]
        wanted = greedy(generator.model, ids, max_new_tokens=8, scores=True).hypotheses()[0][0]
        assert found.hypothesis.ids.tolist() == wanted.ids.tolist()
        assert prompt + found.text == theirs.decode([*ids[0].tolist(), *wanted.ids.tolist()], skip_special_tokens=True)


@pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")
def test_a_translator(tmp_path: Path, catalogue: tfkit.Catalogue) -> None:
    place = tmp_path / "theirs"
    theirs = marian(place)
    translator = Translator.load(imported(TRANSLATOR, theirs, place, catalogue), catalogue=catalogue)
    for text, found in zip(TEXTS[:5], translator.translate(TEXTS[:5]), strict=True):
        assert list(found.source_ids) == theirs(text)["input_ids"]
        assert found.text.split() == theirs.decode(found.hypotheses[0].ids.tolist(), skip_special_tokens=True).split()


def test_white_space_is_that_of_the_original_tokeniser(tmp_path: Path, catalogue: tfkit.Catalogue) -> None:
    theirs, place = saved("roberta", tmp_path)
    search = Search(kind="sample", seed=1, n_best=20, temperature=9.0)
    translator = Translator.load(imported(TRANSLATOR, theirs, place, catalogue), search, catalogue=catalogue)
    found = [translation for line in (TEXTS[0], TEXTS[6], TEXTS[7]) for translation in translator.translate([line])]
    texts = [text for translation in found for text in translation.texts]
    hypotheses = [hypothesis for translation in found for hypothesis in translation.hypotheses]
    assert texts == [theirs.decode(hypothesis.ids.tolist(), skip_special_tokens=True) for hypothesis in hypotheses]
    assert any(text.startswith(" ") for text in texts)


@pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")
@pytest.mark.parametrize(("made", "code"), [(marian, "fra"), (m2m_100, "fr"), (mbart, "fr_XX")])
def test_the_language_of_a_translation(
    made: Callable[[Path], Any], code: str, tmp_path: Path, catalogue: tfkit.Catalogue
) -> None:
    """Where transformers has the token of the language: before the source in Marian, and as the first token of a translation in
    the others."""
    place = tmp_path / "theirs"
    theirs = made(place)
    theirs.save_pretrained(place)
    translator = Translator.load(imported(TRANSLATOR, theirs, place, catalogue, ROWS=400), catalogue=catalogue)
    (plain,), (found,) = translator.translate([TEXTS[0]]), translator.translate([TEXTS[0]], target_language=code)
    if made is marian:
        assert list(found.source_ids) == theirs(f">>{code}<< {TEXTS[0]}")["input_ids"] != list(plain.source_ids)
    else:
        number = theirs.get_lang_id(code) if made is m2m_100 else theirs.convert_tokens_to_ids(code)
        assert number != theirs.unk_token_id
        assert found.source_ids == plain.source_ids
        assert found.hypotheses[0].ids[0] == number
    (begun,) = translator.translate([TEXTS[0]], target_language=code, prefixes=["Zwei Hunde"])
    assert begun.text.startswith("Zwei Hunde")
    place = place.parent / "model"
    aligned = Translator.load(place, Search(kind="greedy"), alignment=True, catalogue=catalogue)
    (words,) = aligned.translate([TEXTS[0]], target_language=code)
    assert len(words.piece_alignments[0]) == len(words.hypotheses[0].ids)
    assert all(one < len(TEXTS[0].split()) and other < len(words.text.split()) for one, other in words.alignments[0])
    assert {other for _, other in words.alignments[0]} == set(range(len(words.text.split())))
    rescorer = Rescorer.load(place, catalogue=catalogue)
    (rescored,) = rescorer.rescore([(TEXTS[0], "Zwei Hunde")], target_language=code)
    target = translator.tokenisers["target"]
    forced = [[] if made is marian else [number], target.encode(["Zwei Hunde"])[0], [theirs.eos_token_id]]
    labels = torch.tensor([[token for part in forced for token in part]])
    with torch.no_grad():
        outputs = rescorer.model(source=torch.tensor([found.source_ids]), labels=labels)
    assert rescored.log_probability == pytest.approx(-float(outputs.loss) * labels.shape[1], rel=1e-5)
    known = {marian: ">>fra<<", m2m_100: "__af__, __am__", mbart: "ar_AR, cs_CZ"}[made]
    token = {marian: ">>fra<<", m2m_100: "__fr__", mbart: "fr_XX"}[made]
    (again,) = translator.translate([TEXTS[0]], target_language=token)
    assert (again.source_ids, again.text) == (found.source_ids, found.text)
    for special in ("<pad>", "</s>"):
        with pytest.raises(InputError, match=f"no token of the language '{special}'"):
            list(translator.translate([TEXTS[0]], target_language=special))
    with pytest.raises(InputError, match="TFK078 the prefix of line 2 holds the end token"):
        list(translator.translate(TEXTS[:2], prefixes=["Zwei", "Hunde </s>"]))
    with pytest.raises(InputError, match=f"TFK077 the model has no token of the language 'xx'; its language tokens: {known}"):
        list(translator.translate([TEXTS[0]], target_language="xx"))


RECIPE = """
tfkit: 1
name: again
model: {place}/spec.yaml
pretrained: {place}
data: {data}
batching: {{tokens: 400}}
schedule: {{kind: constant, peak: 1.0e-3}}
stopping: {{max_steps: 2}}
validation: {{every_steps: 2}}
"""


@pytest.mark.parametrize("kind", ["pairs", "tagged", "parallel", "language"])
@pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")
def test_training_goes_on_with_the_original_tokeniser(kind: str, tmp_path: Path, catalogue: tfkit.Catalogue) -> None:
    if kind == "parallel":
        place = tmp_path / "theirs"
        model = imported(TRANSLATOR, marian(place), place, catalogue)
        files = {side: "\n".join([TEXTS[0], TEXTS[1], TEXTS[4]] * 10) for side in ("source", "target")}
    else:
        theirs, place = saved("gpt2" if kind == "language" else "bert", tmp_path)
        spec = {"language": DECODER, "pairs": CLASSIFIER, "tagged": TAGGER}[kind]
        model = imported(spec, theirs, place, catalogue, None if kind == "language" else kind == "pairs", SEGMENTS=2)
        rows = {"pairs": f"{TEXTS[0]}\t{TEXTS[1]}\ta\n{TEXTS[4]}\tdog\tb", "tagged": "A a\nman b\n", "language": TEXTS[0]}[kind]
        files = {"text" if kind == "language" else "table": "\n".join([rows] * 15)}
    for name, content in files.items():
        (tmp_path / f"{name}.txt").write_text(content + "\n")
    data = {"kind": kind, "held_out": 4, **{name: str(tmp_path / f"{name}.txt") for name in files}}
    run = tmp_path / "run"
    train(recipe_of(RECIPE.format(place=model, data=data), str(tmp_path / "r.yaml")), run)
    for name in ("source.json", "target.json") if kind == "parallel" else ("tokeniser.json",):
        assert (run / name).read_bytes() == (model / name).read_bytes()
    if kind == "parallel":
        again = Translator.load(run).translate([TEXTS[0]])
        assert list(next(again).source_ids) == marian(tmp_path / "again")(TEXTS[0])["input_ids"]


def test_a_recipe_cannot_set_an_imported_tokeniser(tmp_path: Path, catalogue: tfkit.Catalogue) -> None:
    theirs, place = saved("bert", tmp_path)
    model = imported(CLASSIFIER, theirs, place, catalogue, False, SEGMENTS=2)
    (tmp_path / "t.txt").write_text("A man\ta\nA dog\tb\n" * 20)
    text = RECIPE.format(place=model, data={"kind": "classification", "table": str(tmp_path / "t.txt")})
    with pytest.raises(InputError, match=r"TFK117 .*tokeniser\.kind.* has an imported tokeniser.*leave `tokeniser` out"):
        train(recipe_of(text + "tokeniser: {kind: bpe}\n", str(tmp_path / "r.yaml")), tmp_path / "run")
