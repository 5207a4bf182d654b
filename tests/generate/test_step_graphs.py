"""A captured step gives the tokens of ordinary steps: at every position from one recording, with a stand-in for CUDA graphs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor

import graph_stand_in
import tfkit
from tfkit import Model
from tfkit.attention.positions import PositionAt
from tfkit.generate import StepGraphs
from tfkit.generate.step_graphs import cuda_graph

SCHEMES = ["none", "sinusoidal", "rotary_half", "alibi", "relative_t5", "relative_shaw", "{kind: learned, max_len: 30}"]
N = 12


def prompts(rows: int = 4, length: int = 3) -> Tensor:
    return torch.randint(3, 11, (rows, length), generator=torch.Generator().manual_seed(3))


def graphs_of(model: Model) -> StepGraphs:
    return StepGraphs(model, graph_stand_in.capture)


@pytest.mark.parametrize("backend", ["eager", "sdpa"])
@pytest.mark.parametrize("position", SCHEMES)
def test_the_tokens_are_those_without_a_graph(position: str, backend: str, decoder_of: Callable[..., Model]) -> None:
    model = decoder_of("writer", position=position)
    model.set_backend(backend)
    plain = tfkit.greedy(model, prompts(), max_new_tokens=N, scores=True)
    found = tfkit.greedy(model, prompts(), max_new_tokens=N, scores=True, graphs=graphs_of(model))
    assert torch.equal(found.ids, plain.ids)
    assert torch.equal(found.lengths, plain.lengths)
    assert torch.equal(found.finished, plain.finished)
    torch.testing.assert_close(found.log_probabilities, plain.log_probabilities, rtol=1e-9, atol=1e-9)
    assert int(plain.lengths.max()) > 4  # one recording served several positions


@pytest.mark.parametrize("changes", [
    {"defaults.attention.window": "[2, 0]"}, {"defaults.attention.num_kv_heads": "1"}, {"body.final_norm": "rms_norm"},
    {"defaults.attention.sink": "true"}, {"defaults.attention.query_key_norm": "rms_norm"},
    {"defaults.attention.softcap": "5.0"}, {"body.sublayers": "[self_attention, ssru, ffn]"},
    {"body.sublayers": "[self_attention, {kind: average_attention, d_ff: 8}, ffn]"},
])  # fmt: skip
def test_so_they_are_with_other_attention(changes: dict[str, str], decoder_of: Callable[..., Model]) -> None:
    model = decoder_of("writer", *(f"{key}={value}" for key, value in changes.items()))
    found = tfkit.greedy(model, prompts(), max_new_tokens=N, graphs=graphs_of(model))
    assert torch.equal(found.ids, tfkit.greedy(model, prompts(), max_new_tokens=N).ids)


def test_rows_that_end_at_different_steps_and_limits(decoder_of: Callable[..., Model]) -> None:
    model, limits = decoder_of("writer"), torch.tensor([2, 12, 5, 9, 12, 12, 1, 12])
    seen: list[list[tuple[int, int]]] = []
    for graphs in (None, graphs_of(model)):
        emitted: list[tuple[int, int]] = []
        found = tfkit.greedy(
            model, prompts(8), max_new_tokens=limits, graphs=graphs,
            emit=lambda rows, ids, emitted=emitted: emitted.extend(zip(rows.tolist(), ids.tolist(), strict=True)),
        )  # fmt: skip
        seen.append([*emitted, *enumerate(found.lengths.tolist())])
    assert seen[0] == seen[1]
    assert len(set(found.lengths.tolist())) > 2


def test_samples_are_equal(decoder_of: Callable[..., Model]) -> None:
    model = decoder_of("writer")
    given = {"max_new_tokens": N, "temperature": 0.8, "top_p": 0.9, "seed": 5, "samples": 3}
    plain, found = (tfkit.sample(model, prompts(), graphs=graphs, **given) for graphs in (None, graphs_of(model)))
    assert [[one.ids.tolist() for one in row] for row in plain] == [[one.ids.tolist() for one in row] for row in found]


def test_batches_of_one_size_share_a_recording_and_nothing_else(decoder_of: Callable[..., Model]) -> None:
    model = decoder_of("writer")
    graphs, sources = graphs_of(model), [[1, 5, 6], [1, 7, 8], [1, 9, 4, 3], [1, 4, 4, 4], [1, 3]]
    search = tfkit.Search(kind="greedy", length_factor=0, extra_length=N)
    plain = tfkit.generate_batched(model, sources, search)
    for _ in range(2):
        found = tfkit.generate_batched(model, sources, search, graphs=graphs)
        assert [row[0].ids.tolist() for row in found] == [row[0].ids.tolist() for row in plain]
    assert sorted((rows, capacity) for rows, _, capacity, *_ in graphs.steps) == [(1, 64), (2, 64)]


SOURCE = torch.randint(3, 11, (6, 5), generator=torch.Generator().manual_seed(3))
SOURCE[1, 3:] = 0
SOURCE[4, 1:] = 0


@pytest.mark.parametrize(("position", "backend"), list(zip(SCHEMES, ["eager", "sdpa"] * 4, strict=False)))
def test_a_translation_is_that_without_a_graph(position: str, backend: str, decoder_of: Callable[..., Model]) -> None:
    """Sources of several lengths, in batches of other sizes that share a recording."""
    model = decoder_of("translator", position=position)
    model.set_backend(backend)
    graphs = graphs_of(model)
    for sources in (SOURCE, SOURCE[:5, :4], SOURCE[[4, 1, 2, 3, 0]]):
        plain = tfkit.greedy(model, source=sources, max_new_tokens=N, scores=True)
        found = tfkit.greedy(model, source=sources, max_new_tokens=N, scores=True, graphs=graphs)
        assert torch.equal(found.ids, plain.ids)
        assert torch.equal(found.finished, plain.finished)
        torch.testing.assert_close(found.log_probabilities, plain.log_probabilities, rtol=1e-9, atol=1e-9)
    assert len(graphs.steps) == 1


@pytest.mark.parametrize(("kind", "position", "changes"), [
    ("translator", "sinusoidal", []), ("translator", "relative_t5", []), ("writer", "rotary_half", []),
    ("translator", "sinusoidal", ["decoder.sublayers=[ssru, cross_attention, ffn]"]),
    ("translator", "none", ["decoder.sublayers=[{kind: average_attention, d_ff: 8}, self_attention, cross_attention, ffn]"]),
])  # fmt: skip
def test_hypotheses_are_those_without_a_graph(
    kind: str, position: str, changes: list[str], decoder_of: Callable[..., Model]
) -> None:
    """Sentences end at other steps, so that hypotheses move to the rows of those that have ended."""
    model, lengths = decoder_of(kind, *changes, position=position), set()
    inputs = {"source": SOURCE} if kind == "translator" else {"prompt": prompts(6)}
    graphs, limits = graphs_of(model), torch.tensor([9, 4, 1, 12, 7, 2])
    for rows, beams in ((6, 4), (5, 4), (6, 1)):
        call = {name: ids[:rows] for name, ids in inputs.items()}
        options = {"beams": beams, "n_best": min(beams, 3), "max_new_tokens": limits[:rows], **call}
        plain, found = (tfkit.beam_search(model, graphs=given, **options) for given in (None, graphs))
        assert [[one.ids.tolist() for one in row] for row in found] == [[one.ids.tolist() for one in row] for row in plain]
        scores, wanted = ([one.score for row in rows for one in row] for rows in (found, plain))
        assert scores == pytest.approx(wanted, rel=1e-9)
        lengths |= {len(one.ids) for row in plain for one in row}
    assert len(graphs.steps) == 2  # of 8 rows with 4 beams each, and with one
    assert len(lengths) > 2


def test_few_recordings_are_kept(decoder_of: Callable[..., Model], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tfkit.generate.step_graphs.MAX_STEPS", 2)
    model = decoder_of("writer")
    graphs = graphs_of(model)
    for rows in (1, 2, 1, 4):
        tfkit.greedy(model, prompts(rows), max_new_tokens=2, graphs=graphs)
    assert [rows for rows, *_ in graphs.steps] == [1, 4]


def test_the_stand_in_shows_a_number_that_a_recording_keeps(decoder_of: Callable[..., Model], monkeypatch) -> None:
    """A position that Python reads in a step is that of the recording for ever: the tokens differ."""
    model = decoder_of("writer", position="sinusoidal")
    plain = tfkit.greedy(model, prompts(), max_new_tokens=N)
    monkeypatch.setattr(PositionAt, "query_positions", lambda self: torch.tensor([3]))
    found = tfkit.greedy(model, prompts(), max_new_tokens=N, graphs=graphs_of(model))
    assert not torch.equal(found.ids, plain.ids)
    monkeypatch.setattr(PositionAt, "query_positions", lambda self: torch.tensor([int(self.place)]))
    with pytest.raises(RuntimeError, match="a number of the device is read"):
        tfkit.greedy(model, prompts(), max_new_tokens=N, graphs=graphs_of(model))


def test_a_scheme_that_reads_a_number_is_refused(decoder_of: Callable[..., Model], monkeypatch) -> None:
    from tfkit.builtin.position.embedding_positions import Sinusoidal

    model = decoder_of("writer", position="sinusoidal")
    monkeypatch.setattr(Sinusoidal, "embed", lambda self, x, span: x + span.offset)
    tfkit.greedy(model, prompts(), max_new_tokens=N)
    with pytest.raises(tfkit.InputError, match=r"TFK063.*reads `offset` as a number"):
        tfkit.greedy(model, prompts(), max_new_tokens=N, graphs=graphs_of(model))


def test_torch_records_after_runs_on_another_stream(monkeypatch) -> None:
    """With stand-ins for torch's streams and graphs, which only say what was asked of them."""
    heard: list[str] = []

    class Stream:
        def __init__(self, name: str = "side") -> None:
            self.name = name

        def wait_stream(self, other: Stream) -> None:
            heard.append(f"{self.name} waits for {other.name}")

    class Graph:
        def replay(self) -> None:
            heard.append("replay")

    @contextmanager
    def entered(thing: Stream | Graph, **options: str) -> Iterator[None]:
        heard.append(" ".join([f"in {type(thing).__name__}", *options.values()]))
        yield
        heard.append("out")

    main = Stream("main")
    for name, stand_in in {"Stream": Stream, "CUDAGraph": Graph, "stream": entered, "graph": entered}.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: main)
    replay, result = cuda_graph(lambda: heard.append("run") or torch.ones(1), pool="memory")
    replay()
    before = ["side waits for main", "in Stream", "run", "run", "run", "out", "main waits for side"]
    assert heard == [*before, "in Graph memory thread_local", "run", "out", "replay"]
    assert torch.equal(result, torch.ones(1))


def test_what_cannot_be_captured_is_refused(decoder_of: Callable[..., Model]) -> None:
    writer, translator = decoder_of("writer"), decoder_of("translator", "decoder.cross_attention={position: alibi}")
    with pytest.raises(tfkit.InputError, match="TFK063 CUDA graphs need a CUDA device, and the model is on cpu"):
        StepGraphs(writer)
    with pytest.raises(tfkit.InputError, match=r"TFK063.*`decoder` has positions in cross-attention"):
        tfkit.greedy(translator, source=prompts(), max_new_tokens=3, graphs=graphs_of(translator))
    padded = prompts()
    padded[0, 0] = 0
    with pytest.raises(tfkit.InputError, match=r"TFK063.*prompt holds padding"):
        tfkit.greedy(writer, padded, max_new_tokens=3, graphs=graphs_of(writer))
    with pytest.raises(tfkit.InputError, match=r"TFK063.*body\.0.*captured step gives none"):
        tfkit.greedy(writer, prompts(), max_new_tokens=3, graphs=graphs_of(writer), attention=["body.0.self_attention"])
    with pytest.raises(tfkit.InputError, match=r"TFK063.*body\.0.*captured step gives none"):
        tfkit.beam_search(writer, prompt=prompts(), graphs=graphs_of(writer), attention=["body.0.self_attention"])
    short = decoder_of("writer", position="{kind: learned, max_len: 10}")
    with pytest.raises(tfkit.InputError, match="TFK061 the search reaches position 14, and the model has 10 positions"):
        tfkit.greedy(short, prompts(), max_new_tokens=12, graphs=graphs_of(short))
