"""import and export from the command line: a model of transformers translates, generates and labels as it did there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import huggingface_tokenisers
from interop.models import MODELS, make
from tfkit.cli import main
from translation_task import write_task

pytestmark = pytest.mark.slow

TEXTS = ["A dog runs through the snow.", "Two men play the piano", "Hello, world!"]


def model_with(name: str, tokeniser: str, directory: Path, **ids: Any) -> tuple[Any, Any]:
    """A model of transformers and its tokeniser, saved together."""
    import transformers

    maker = getattr(huggingface_tokenisers, tokeniser)
    (directory / "pieces").mkdir(parents=True)
    theirs = maker(directory / "pieces")
    family, options = MODELS[name]
    sizes = {**options, "vocab_size": len(theirs), **ids}
    config = getattr(transformers, f"{family}Config")(**sizes, attn_implementation="eager")
    torch.manual_seed(1)
    model = getattr(transformers, name)(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.0, 0.4)
    model.save_pretrained(directory / "hf")
    theirs.save_pretrained(directory / "hf")
    return model, theirs


def run(words: list[str], text: str, typed: Any, capsys: Any) -> str:
    typed(text)
    capsys.readouterr()
    assert main(words) == 0
    return str(capsys.readouterr().out)


def test_an_imported_translator_translates(tmp_path, typed, capsys):
    sizes = {"num_decoder_layers": 2, "pad_token_id": 0, "eos_token_id": 1}
    theirs, tokeniser = model_with("T5ForConditionalGeneration", "t5", tmp_path, **sizes)
    assert main(["import", str(tmp_path / "hf"), "-o", str(tmp_path / "model")]) == 0
    assert "tokeniser.json" in capsys.readouterr().out
    words = ["translate", str(tmp_path / "model"), "--beams", "1"]
    found = run(words, "\n".join(TEXTS) + "\n", typed, capsys).splitlines()
    for text, line in zip(TEXTS, found, strict=True):
        ids = theirs.generate(
            **tokeniser(text, return_tensors="pt"),
            max_new_tokens=50 + len(tokeniser(text).input_ids),
            do_sample=False,
            num_beams=1,
        )
        assert line.split() == tokeniser.decode(ids[0], skip_special_tokens=True).split()
    assert main(["export", str(tmp_path / "model"), "--to", "hf", "-o", str(tmp_path / "out")]) == 0
    for file in (tmp_path / "hf").iterdir():
        assert (tmp_path / "out" / file.name).read_bytes() == file.read_bytes(), file.name


def test_an_imported_classifier_labels(tmp_path, typed, capsys):
    theirs, tokeniser = model_with("BertForSequenceClassification", "bert", tmp_path, num_labels=5)
    assert main(["import", str(tmp_path / "hf"), "-o", str(tmp_path / "model")]) == 0
    found = run(["classify", str(tmp_path / "model")], "\n".join(TEXTS) + "\n", typed, capsys).splitlines()
    with torch.no_grad():
        best = [int(theirs(**tokeniser(text, return_tensors="pt")).logits.argmax()) for text in TEXTS]
    assert [line.split("\t")[0] for line in found] == [theirs.config.id2label[number] for number in best]


def test_the_tags_of_an_imported_tagger_are_words(tmp_path, capsys):
    model_with("BertForTokenClassification", "bert", tmp_path, id2label=dict(enumerate(["B X", "O", "I", "E"])))
    assert main(["import", str(tmp_path / "hf"), "-o", str(tmp_path / "model")]) == 2
    assert "`id2label`: the tag `B X` holds white space; give each class a name of its own" in capsys.readouterr().err
    assert not (tmp_path / "model").exists()


def test_an_imported_decoder_generates(tmp_path, typed, capsys):
    theirs, tokeniser = model_with("GPT2LMHeadModel", "gpt2", tmp_path, pad_token_id=None, bos_token_id=1, eos_token_id=1)
    assert main(["import", str(tmp_path / "hf"), "-o", str(tmp_path / "model")]) == 0
    words = ["generate", str(tmp_path / "model"), "--tokens", "7"]
    found = run(words, f"{TEXTS[0]}\n", typed, capsys)
    prompt = tokeniser(TEXTS[0], return_tensors="pt")
    ids = theirs.generate(**prompt, max_new_tokens=7, do_sample=False, pad_token_id=1)
    assert tokeniser.decode(ids[0], skip_special_tokens=True).split() == found.split()


def test_what_the_commands_refuse(tmp_path, capsys):
    make("ViTForImageClassification").save_pretrained(tmp_path / "vit")
    capsys.readouterr()
    assert main(["import", str(tmp_path / "vit")]) == 2
    assert main(["import", str(tmp_path / "vit"), "-o", str(tmp_path / "model"), "--dry-run"]) == 2
    assert main(["import", str(tmp_path / "vit"), "-o", str(tmp_path / "model")]) == 0
    assert main(["import", str(tmp_path / "vit"), "-o", str(tmp_path / "model")]) == 2
    assert main(["import", str(tmp_path / "vit"), "-o", str(tmp_path / "model"), "--force"]) == 0
    assert main(["export", str(tmp_path / "model"), "--to", "hf", "--quantization", "int8", "-o", str(tmp_path / "out")]) == 2
    assert main(["export", str(tmp_path / "model"), "--to", "hf", "--class", "BertModel", "-o", str(tmp_path / "out")]) == 2
    err = capsys.readouterr().err
    assert "-o DIR, where the model is saved, or --dry-run" in err
    assert "exists already" in err
    assert "--quantization belongs to ctranslate2" in err
    assert not (tmp_path / "out").exists()


def test_a_trained_model_goes_out_with_its_tokeniser(tmp_path, typed, capsys):
    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

    recipe = write_task(tmp_path)
    words = ["--set", "stopping.max_steps=30", "--set", "validation.metric=loss"]
    for change in ("defaults.position=sinusoidal_halves", "logits.bias=frozen"):  # the model is then a Pegasus
        words += ["--set", f"model.{change}"]
    assert main(["train", str(recipe), "-o", str(tmp_path / "run"), *words]) == 0
    assert main(["export", str(tmp_path / "run"), "--to", "hf", "-o", str(tmp_path / "out")]) == 0
    lines = (tmp_path / "train.src").read_text().splitlines()[:5]
    found = run(["translate", str(tmp_path / "run"), "--beams", "1"], "\n".join(lines) + "\n", typed, capsys).splitlines()
    model, tokeniser = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "out"), AutoTokenizer.from_pretrained(tmp_path / "out")
    for line, translation in zip(lines, found, strict=True):
        source = tokeniser(line, return_tensors="pt")
        longest = 50 + source["input_ids"].shape[1]
        source.pop("token_type_ids", None)
        ids = model.generate(**source, max_new_tokens=longest, do_sample=False, num_beams=1)
        assert tokeniser.decode(ids[0], skip_special_tokens=True).split() == translation.split()
