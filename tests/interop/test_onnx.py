"""onnxruntime computes what tfkit computes, for other batches and lengths than those that were traced."""

from __future__ import annotations

import json
import runpy
import sys

import onnxruntime
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers

import tfkit
from fixtures import SPECS
from tfkit.interop.export import export
from tfkit.interop.program_exports import write_onnx

from .engine import ENCODER, LANGUAGE, NODES, built
from .program_runs import decoded, empty_past, programs_in

pytestmark = pytest.mark.usefixtures("one_thread")

T5 = "{kind: relative_t5, buckets: 8, max_distance: 12}"
MIXED = [
    "defaults.position={kind: learned, max_len: 64}", "defaults.norm=rms_norm", "defaults.placement=pre",
    "defaults.attention={num_heads: 4, num_kv_heads: 2}", "defaults.ffn={d_ff: 28, activation: swiglu}",
    f"encoder.layers=[{{position: rotary_half}}, {{position: {T5}}}]",
    "decoder.layers=[{position: rotary_half}, {position: alibi}]",
]  # fmt: skip
"""Every scheme of positions at once: learned rows, rotations, a bias by distance and one that is linear in it."""
SMALL = ["expect=null", "defaults.attention.num_heads=2", "defaults.ffn.d_ff=40"]
WHISPER = [
    *SMALL, "defaults.d_model=24", "audio.size=7", "encoder.num_layers=1", "decoder.num_layers=1", "target.vocab_size=61",
    "frames.convolutions=[{d_model: 16, activation: gelu}, {d_model: 24, stride: 2, activation: gelu}]",
    "target.start_id=58", "target.end_id=59", "target.position.max_len=40",
]  # fmt: skip
CLIP = [
    "expect=null", "image.size=12", "image.patch=4", "text.vocab_size=61", "text.d_model=24", "text.end_id=60",
    "text.position.max_len=40", "text_body.num_layers=1", "text_body.attention.num_heads=2", "text_body.ffn.d_ff=40",
    "text_vector.d_model=14", "image.d_model=32", "image_body.num_layers=1", "image_body.attention.num_heads=4",
    "image_body.ffn.d_ff=36", "image_vector.d_model=14",
]  # fmt: skip
SOURCES = [[3 + (7 * row + 5 * at * at) % 30 for at in range(length)] for row, length in enumerate((19, 3, 1))]


def runner(directory, programs):
    sessions = {name: onnxruntime.InferenceSession(directory / each["file"]) for name, each in programs.items()}

    def run(name, tensors):
        facts = programs[name]
        given = {each["name"]: tensors[each["name"]].numpy() for each in facts["inputs"]}
        found = map(torch.from_numpy, sessions[name].run(None, given))
        return dict(zip([each["name"] for each in facts["outputs"]], found, strict=True))

    return run


def padded(sources):
    return torch.nn.utils.rnn.pad_sequence([torch.tensor([*ids, 2]) for ids in sources], batch_first=True)


@pytest.mark.exhaustive
def test_an_encoder_decoder_in_two_programs(catalogue, tmp_path, rounding, monkeypatch, capsys, typed):
    """Greedy decoding by the example of the guide, and logits of given ids."""
    model = built(catalogue, NODES, MIXED)
    words = Tokenizer(models.WordLevel({f"w{number}": number for number in range(40)}, unk_token="w3"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    directory = export(model, tmp_path / "out", "onnx", texts={"tokeniser.json": words.to_str()})
    said, programs = programs_in(directory)
    assert (said["decoded"], said["ids"]["target"]["start_id"], said["max_lengths"]["target"]) == ("target", 1, 64)
    assert {each["name"]: each["shape"] for each in programs["encode"]["outputs"]} == {
        **{f"memory.decoder.{layer}.cross_attention.{part}": ["batch", 2, "source", 6]
           for layer in (0, 1) for part in ("key", "value")},
        "memory.encoder.visible": ["batch", "source"],
    }  # fmt: skip
    source, ids = padded(SOURCES), torch.randint(3, 40, (3, 17), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        theirs, ours = decoded(model, programs, runner(directory, programs), ids, [2, *[1] * 14, 1], source=source)
        assert float((theirs - ours).abs().max()) <= rounding(model, ours, 20)
        alone, _ = decoded(model, programs, runner(directory, programs), ids[1:2], [17], source=source[1:2, :4])
    # Padding and the other rows change nothing.
    assert float((theirs[1:2] - alone).abs().max()) <= rounding(model, ours, 20)
    assert not any(str(directory.parent).encode() in (directory / each["file"]).read_bytes() for each in programs.values())

    greedy = tfkit.greedy(model, source=source)
    rows = [row[:length] for row, length in zip(greedy.ids.tolist(), greedy.lengths.tolist(), strict=True)]
    lines = "\n".join(" ".join(f"w{number}" for number in each) for each in SOURCES)
    monkeypatch.setattr(sys, "argv", ["translate.py", str(directory)])
    typed(lines)
    capsys.readouterr()
    runpy.run_path("docs/examples/onnx/translate.py")
    wanted = [" ".join(f"w{number}" for number in row if number != 2) for row in rows]
    assert capsys.readouterr().out.splitlines() == wanted
    assert len({*wanted}) == 3


IN_LAYERS = ["tokens.position=none", "body.position={kind: learned, max_len: 40, offset: 1, count: visible}"]


@pytest.mark.slow
@pytest.mark.parametrize("changes", [["body.num_layers=1", f"defaults.position={T5}"], IN_LAYERS], ids=["scores", "layers"])
def test_a_language_model_steps_over_prompts_that_are_padded_on_the_left(changes, catalogue, tmp_path, rounding):
    model = built(catalogue, LANGUAGE, changes)
    write_onnx(model, {}, tmp_path)
    _, programs = programs_in(tmp_path)
    ids = torch.randint(3, 40, (3, 12), generator=torch.Generator().manual_seed(1))
    visible = torch.arange(12) >= torch.tensor([[0], [4], [1]])
    ids[~visible] = 0
    with torch.no_grad():
        theirs, ours = decoded(model, programs, runner(tmp_path, programs), ids, [6, 1, 5], visible)
    assert float((theirs - ours)[visible].abs().max()) <= rounding(model, ours, 12)


@pytest.mark.slow
def test_an_encoder_is_one_program(catalogue, tmp_path, rounding):
    model = built(catalogue, ENCODER, ["encoder.num_layers=1", "defaults.position={kind: learned, max_len: 32}"])
    write_onnx(model, {"source.spm": b"\xff\0"}, tmp_path)
    assert (tmp_path / "source.spm").read_bytes() == b"\xff\0"
    _, programs = programs_in(tmp_path)
    tokens = padded(SOURCES)
    segments = (torch.arange(tokens.shape[1]) > 4).long().expand_as(tokens).contiguous()
    found = runner(tmp_path, programs)("forward", {"tokens": tokens, "tokens.segments": segments})
    with torch.no_grad():
        wanted = model(tokens=tokens, segments={"tokens": segments})
    assert set(found) == set(wanted) == {"encoder", "pooled"}
    for name, ours in wanted.items():
        assert float((found[name] - ours).abs().max()) <= rounding(model, ours, tokens.shape[1])


@pytest.mark.slow
def test_the_states_of_a_recurrent_decoder_are_inputs(catalogue, tmp_path, rounding):
    changes = ["defaults.d_model=12", "defaults.vocab_size=40", "body.d_state=8"]
    model = tfkit.build(tfkit.load_spec(SPECS / "rnn-language-model.yaml", catalogue, changes), catalogue, seed=0).eval()
    write_onnx(model, {}, tmp_path)
    _, programs = programs_in(tmp_path)
    assert ["batch", 1] in [each["shape"] for each in programs["step"]["inputs"]]
    with torch.no_grad():
        theirs, ours = decoded(model, programs, runner(tmp_path, programs), torch.tensor([[3, 4, 5, 6], [7, 8, 9, 3]]), [1] * 4)
    assert float((theirs - ours).abs().max()) <= rounding(model, ours, 4)


@pytest.mark.slow
@pytest.mark.parametrize("part", ["ssru", "{kind: average_attention, d_ff: 20}"])
def test_the_states_of_recurrent_sublayers_are_inputs(part, catalogue, tmp_path, rounding):
    model = built(catalogue, NODES, [f"decoder.sublayers=[{part}, cross_attention, ffn]", "encoder.num_layers=1"])
    write_onnx(model, {}, tmp_path)
    _, programs = programs_in(tmp_path)
    source, ids = padded(SOURCES), torch.randint(3, 40, (3, 4), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        theirs, ours = decoded(model, programs, runner(tmp_path, programs), ids, [1] * 4, source=source)
    assert float((theirs - ours).abs().max()) <= rounding(model, ours, 20)


@pytest.mark.exhaustive
def test_whisper_hears_any_length(catalogue, tmp_path, rounding):
    """The convolutions halve the number of frames; an odd one rounds up."""
    model = tfkit.build(tfkit.load_spec(SPECS / "whisper-small.yaml", catalogue, WHISPER), catalogue, seed=0).eval()
    write_onnx(model, {}, tmp_path)
    said, programs = programs_in(tmp_path)
    assert said["min_lengths"] == {"audio": 3}
    ids = torch.randint(3, 58, (3, 6), generator=torch.Generator().manual_seed(1))
    for frames in (3, 11, 18):
        audio = torch.randn(3, frames, 7, generator=torch.Generator().manual_seed(frames))
        seen = torch.arange(frames) < torch.tensor([[frames], [frames - 1], [1]])
        run = runner(tmp_path, programs)
        given = {"audio": audio, "audio.visible": seen}
        with torch.no_grad():
            theirs = run("step", run("encode", given) | empty_past(programs, 3) | {"ids": ids, "visible": ids >= 0})["logits"]
            ours = model(audio=audio, target=ids, masks={"audio": seen}).logits
        assert float((theirs - ours).abs().max()) <= rounding(model, ours, 20)


@pytest.mark.slow
def test_clip_compares_texts_and_images(catalogue, tmp_path, rounding):
    model = tfkit.build(tfkit.load_spec(SPECS / "clip-b32.yaml", catalogue, CLIP), catalogue, seed=0).eval()
    write_onnx(model, {}, tmp_path)
    _, programs = programs_in(tmp_path)
    generator = torch.Generator().manual_seed(1)
    text, image = torch.randint(3, 60, (5, 9), generator=generator), torch.randn(5, 3, 12, 12, generator=generator)
    text[range(5), [8, 3, 5, 8, 1]] = 60
    found = runner(tmp_path, programs)("forward", {"text": text, "text.visible": text >= 0, "image": image})
    with torch.no_grad():
        wanted = model(text=text, image=image)
    assert set(found) == set(wanted)
    for name, ours in wanted.items():
        assert float((found[name] - ours).abs().max()) <= rounding(model, ours, 20), name


@pytest.mark.exhaustive
def test_a_recurrent_encoder_reads_padded_sources_of_any_length(catalogue, tmp_path, rounding):
    """In both directions; greedy ids are those of tfkit."""
    changes = [
        "expect=null", "defaults.vocab_size=40", "defaults.d_model=12", "encoder.d_state=10", "decoder.d_state=10",
        "encoder.num_layers=2", "decoder.readout.d_model=12",
    ]  # fmt: skip
    model = tfkit.build(tfkit.load_spec(SPECS / "rnnsearch-small.yaml", catalogue, changes), catalogue, seed=0).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3.0)
    write_onnx(model, {}, tmp_path)
    _, programs = programs_in(tmp_path)
    source = padded(SOURCES)
    made = tfkit.greedy(model, source=source, max_new_tokens=7)
    ids = torch.cat([torch.ones(3, 1, dtype=torch.int64), made.ids[:, :-1]], 1)
    with torch.no_grad():
        theirs, ours = decoded(model, programs, runner(tmp_path, programs), ids, [1] * ids.shape[1], source=source)
    real = torch.arange(ids.shape[1]) < made.lengths[:, None]
    assert float((theirs - ours)[real].abs().max()) <= rounding(model, ours, 20)
    assert theirs.argmax(2)[real].tolist() == made.ids[real].tolist()
    assert len({*made.ids[real].tolist()}) > 4


def test_what_torch_cannot_trace_is_one_error_and_the_model_stays_as_it_was(catalogue, tmp_path, monkeypatch):
    model = built(catalogue).train()
    before = model.requested_backends
    monkeypatch.setattr("tfkit.interop.trace.programs_of", lambda model: json.loads("no JSON"))
    with pytest.raises(tfkit.BuildError, match="TFK127 torch cannot trace `small`: Expecting value"):
        export(model, tmp_path / "out", "onnx")
    assert not (tmp_path / "out").exists()
    assert (model.training, model.requested_backends) == (True, before)
