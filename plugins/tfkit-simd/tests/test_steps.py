"""Recorded steps give what ordinary steps give."""

from __future__ import annotations

import random
import threading
from functools import partial
from typing import Any

import pytest
import tfkit_simd as plugin
import torch
from tfkit_simd import steps
from torch.nn import functional

import tfkit
from tfkit.cpu.bfloat16 import bfloat16_kernel_here
from tfkit.cpu.int8 import is_supported
from tfkit.cpu.low_precision import LowPrecisionHead
from tfkit.generate import RecordedSteps, recorded_steps
from tfkit.inspection import Int8Weight
from tfkit.nn.precision import round_weights
from tfkit.plugin import CannotRecord, StepRecorder

pytestmark = pytest.mark.skipif(not plugin.AVX2, reason="not run: this processor has no AVX2")
INSTRUCTIONS = [
    "avx2",
    pytest.param("avx512", marks=pytest.mark.skipif(not plugin.AVX512_VNNI, reason="not run: no AVX-512 with VNNI")),
]
RECORDED = [
    "tiny-rotary", "tiny-alibi", "tiny-no-position", "tiny-sinusoidal-concat", "tiny-batch-norm", "tiny-normless", "tiny-geglu",
    "tiny-parallel", "tiny-glu", "tiny-relu-squared", "tiny-tanh", "gpt-char", "transformer-fast", "tiny-average",
]  # fmt: skip
ORDINARY = ["tiny-additive", "tiny-relative-shaw", "rnnsearch-small"]
CHANGES = [
    {"defaults.norm": "rms_norm"}, {"defaults.norm": "{kind: rms_norm, unit_offset: true}"}, {"defaults.placement": "pre"},
    {"nodes.decoder.sublayers": "[{kind: self_attention, window: [4, 0]}, cross_attention, ffn]"},
    {"defaults.attention.num_kv_heads": "2"}, {"defaults.ffn.activation": "gelu"}, {"defaults.ffn.activation": "swiglu"},
    {"defaults.position": "relative_t5"}, {"defaults.position": "{kind: learned, max_len: 60}"},
]  # fmt: skip


def built(name: str = "transformer-tiny", *changes: str, scale: float = 1.5) -> tfkit.Model:
    """Random weights, larger than at the start of training, so that the tokens of a search differ."""
    overrides = [f"{change}={value}" for change, value in (pair.split("=", 1) for pair in changes)]
    model = tfkit.build(tfkit.load_spec(name, overrides=overrides), seed=1).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(scale if parameter.dim() > 1 else 1.0)
    return model


def inputs_of(model: tfkit.Model, rows: int) -> dict[str, torch.Tensor]:
    draw = torch.Generator().manual_seed(rows)
    inputs = {name: torch.randint(4, 60, (rows, 7), generator=draw) for name in model.plan.inputs if name == "source"}
    return inputs | {"prompt": torch.randint(4, 60, (rows, 2), generator=draw)}


def with_instructions(model: tfkit.Model, instructions: str) -> RecordedSteps:
    [recorder] = [one for one in plugin.STEP_RECORDERS if one.name.endswith(instructions)]
    return RecordedSteps(model, recorder)


def log_probs_of(model: tfkit.Model, inputs: dict[str, torch.Tensor], ids: torch.Tensor) -> torch.Tensor:
    """The log-probabilities (B,N,V) of each next token, by one pass over all of them."""
    [target] = set(model.plan.inputs) - {"source"}
    others = {name: tensor for name, tensor in inputs.items() if name != "prompt"}
    with torch.no_grad():
        outputs = model(**others, **{target: torch.cat([inputs["prompt"], ids[:, :-1]], 1)})
    return outputs.logits[:, inputs["prompt"].shape[1] - 1 :].log_softmax(2)


def check_greedy(model: tfkit.Model, inputs: dict[str, torch.Tensor], found: tfkit.generate.Generated) -> None:
    """Every token is the most probable one by a pass over all of them, and has its log-probability."""
    assert found.log_probabilities is not None
    log_probs = log_probs_of(model, inputs, found.ids)
    for row in range(len(found.ids)):
        length = int(found.lengths[row])
        expected = log_probs[row, range(length), found.ids[row, :length]]
        torch.testing.assert_close(found.log_probabilities[row, :length], expected, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(expected, log_probs[row, :length].amax(1), rtol=1e-4, atol=1e-4)


def check(model: tfkit.Model, graphs: RecordedSteps, rows: int = 3, new: int = 12) -> None:
    """Every token is the most probable one, and a beam search finds hypotheses as good as those of ordinary steps."""
    inputs = inputs_of(model, rows)
    found = tfkit.greedy(model, max_new_tokens=new, scores=True, graphs=graphs, **inputs)
    check_greedy(model, inputs, found)
    beams = tfkit.beam_search(model, beams=3, max_new_tokens=new, graphs=graphs, **inputs)
    ordinary = tfkit.beam_search(model, beams=3, max_new_tokens=new, **inputs)
    for row, ([best], [other]) in enumerate(zip(beams, ordinary, strict=True)):
        assert best.score == pytest.approx(other.score, rel=1e-4, abs=1e-4)
        one = {name: tensor[row : row + 1] for name, tensor in inputs.items()}
        expected = log_probs_of(model, one, best.ids[None])[0, range(len(best.ids)), best.ids]
        assert best.log_probability == pytest.approx(float(expected.sum()), rel=1e-4, abs=1e-4)


@pytest.mark.parametrize("instructions", INSTRUCTIONS)
@pytest.mark.parametrize("name", RECORDED)
def test_a_recorded_step_gives_the_tokens_of_ordinary_ones(name: str, instructions: str) -> None:
    model = built(name)
    graphs = with_instructions(model, instructions)
    check(model, graphs)
    assert len(graphs.steps) == 2  # greedily, and with beams


@pytest.mark.parametrize("changes", CHANGES, ids=lambda changes: " ".join(changes.values()))
def test_so_it_does_with_other_parts(changes: dict[str, str]) -> None:
    model = built("transformer-tiny", *(f"{key}={value}" for key, value in changes.items()))
    graphs = recorded_steps(model)
    assert graphs is not None
    for rows in (1, 5):
        check(model, graphs, rows)
    assert len(graphs.steps) == 4


@pytest.mark.parametrize("name", ORDINARY)
def test_other_searches_have_ordinary_steps(name: str) -> None:
    model = built(name)
    graphs = recorded_steps(model)
    assert graphs is not None
    check(model, graphs)
    assert not graphs.steps


ROUNDED = ("transformer-tiny", "defaults.ffn.d_ff=2048", "defaults.vocab_size=20000")


def rounded(precision: str, *changes: str) -> tfkit.Model:
    model = built(*ROUNDED, *changes)
    round_weights(model, precision, plugin.INT8_KERNELS)
    assert model.nodes["logits"].low_precision is not None
    return model


@pytest.mark.parametrize("instructions", INSTRUCTIONS)
@pytest.mark.parametrize("changes", [(), ("nodes.logits.bias=true", "nodes.target.start_id=1"), ("nodes.logits.softcap=30.0",)])
def test_steps_with_weights_in_int8_are_recorded(changes: tuple[str, ...], instructions: str) -> None:
    model = rounded("int8", *changes)
    graphs, inputs = with_instructions(model, instructions), inputs_of(model, 3)
    if len(changes) > 1:
        del inputs["prompt"]
    exact, errors = built(*ROUNDED, *changes), []
    inputs_of_exact = inputs if "prompt" in inputs else inputs | {"prompt": torch.ones(3, 1, dtype=torch.int64)}
    for one in (None, graphs):  # an activation that lies between two integers may be rounded to the other one
        found = tfkit.greedy(model, max_new_tokens=30, scores=True, graphs=one, **inputs)
        expected = log_probs_of(exact, inputs_of_exact, found.ids).gather(2, found.ids[:, :, None])[:, :, 0]
        errors.append(float((found.log_probabilities - expected).abs().max()))
        assert len(set(found.ids.flatten().tolist())) > 2
        [best, *_] = tfkit.beam_search(model, beams=3, max_new_tokens=9, graphs=one, **inputs)
        expected = log_probs_of(exact, inputs_of_exact, best[0].ids[None].expand(3, -1))[0].gather(1, best[0].ids[:, None])[
            :, 0
        ]
        errors.append(float((best[0].token_log_probabilities - expected).abs().max()))
    assert graphs.steps, graphs.held.refused
    assert bool(graphs.held.starts) == (len(changes) > 1)
    assert max(errors[2:]) < 3 * max(errors[:2]) < 1.0
    [kernel] = [one for one in plugin.INT8_KERNELS if one.summary == model.nodes["logits"].low_precision.rounded.how]
    model.nodes["logits"].low_precision.rounded = Int8Weight(-model.nodes["source"].embedding.weight, kernel)
    plain, other = (tfkit.greedy(model, max_new_tokens=1, graphs=one, **inputs) for one in (None, graphs))
    assert torch.equal(plain.ids, other.ids)
    assert not torch.equal(other.ids, found.ids[:, :1])


@pytest.mark.parametrize("instructions", INSTRUCTIONS)
@pytest.mark.parametrize("vocabulary", [5, 40, 1000])
@pytest.mark.parametrize("biased", [False, True])
def test_recorded_products_in_int8_have_the_bits_of_ordinary_ones(biased: bool, vocabulary: int, instructions: str) -> None:
    draw = torch.Generator().manual_seed(vocabulary)
    weight, x, y = (torch.randn(rows, 70, generator=draw) for rows in (vocabulary, 6, 6))
    bias = torch.randn(vocabulary, generator=draw) if biased else None
    for kernel in plugin.INT8_KERNELS:
        if not is_supported(kernel) or ("512" in kernel.name and instructions == "avx2"):
            continue
        rounded_weight = Int8Weight(weight, kernel)
        head = LowPrecisionHead(rounded_weight)
        for step, close in ((partial(rounded_weight.product, x, bias), 0.0), (partial(head.logits, x, weight, bias), 1e-5)):
            replay, result = getattr(steps, f"record_{instructions}")(step, [weight, *([] if bias is None else [bias])], {})
            for value in (y, -y, 0 * y):
                x.copy_(value)
                wanted = step()
                result.fill_(7.0)
                replay()
                torch.testing.assert_close(result, wanted, rtol=close, atol=close)


@pytest.mark.skipif(bfloat16_kernel_here() is None, reason="not run: this processor has no bfloat16 products")
def test_weights_in_bfloat16_have_ordinary_steps() -> None:
    model = rounded("bfloat16")
    graphs = recorded_steps(model)
    inputs = inputs_of(model, 2)
    assert graphs is not None
    plain, found = (tfkit.greedy(model, max_new_tokens=9, graphs=one, **inputs) for one in (None, graphs))
    assert torch.equal(plain.ids, found.ids)
    assert not graphs.steps


def test_a_precision_leaves_small_weights_as_they_are() -> None:
    small = built()
    round_weights(small, "int8", tfkit.load_catalogue().entries("int8_kernel"))
    graphs = recorded_steps(small)
    assert graphs is not None
    check(small, graphs)
    assert len(graphs.steps) == 2


def test_so_do_searches_with_head_dims_that_the_kernel_lacks() -> None:
    model = built("transformer-tiny", "defaults.attention.num_heads=16")
    graphs = recorded_steps(model)
    assert graphs is not None
    check(model, graphs)
    assert not graphs.steps


def test_rows_that_end_early_and_have_limits_of_their_own() -> None:
    model = built()
    graphs, inputs = recorded_steps(model), inputs_of(model, 6)
    limits = torch.tensor([1, 12, 3, 7, 12, 2])
    found = tfkit.greedy(model, max_new_tokens=limits, graphs=graphs, **inputs)
    whole = tfkit.greedy(model, max_new_tokens=12, graphs=graphs, **inputs)
    assert bool((found.lengths <= limits).all())
    for row, length in enumerate(found.lengths.tolist()):
        assert torch.equal(found.ids[row, :length], whole.ids[row, :length])


def counting(name: str = "transformer-tiny") -> tfkit.Model:
    """A model whose next token is the last one plus 1, so that every row ends at the end token 2 when its turn comes."""
    model = built(name, "defaults.vocab_size=96", "nodes.logits.share=null", scale=0.5)
    with torch.no_grad():
        table = model.nodes["source"].embedding.weight
        model.nodes["logits"].logits.weight.copy_(20.0 * table.roll(1, 0))
    return model


def test_a_long_search_and_rows_that_end_are_those_of_ordinary_steps() -> None:
    model = counting()
    graphs, inputs = recorded_steps(model), inputs_of(model, 6)
    ordinary = tfkit.greedy(model, max_new_tokens=70, scores=True, **inputs)
    found = tfkit.greedy(model, max_new_tokens=70, scores=True, graphs=graphs, **inputs)
    assert len(set(found.lengths.tolist())) > 3
    assert 0 < int(found.finished.sum()) < 6
    assert torch.equal(found.finished, ordinary.finished)
    assert torch.equal(found.lengths, ordinary.lengths)
    assert torch.equal(found.ids, ordinary.ids)
    torch.testing.assert_close(found.log_probabilities, ordinary.log_probabilities, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", ["transformer-tiny", "transformer-fast"])
def test_a_search_with_fewer_rows_has_the_bits_of_one_with_all(name: str) -> None:
    model = counting(name)
    graphs, inputs, limits = recorded_steps(model), inputs_of(model, 9), torch.tensor([70, 9, 2, 41, 1, 70, 17, 30, 12])
    found = tfkit.greedy(model, max_new_tokens=limits, scores=True, graphs=graphs, **inputs)
    assert [rows for rows, *_ in graphs.steps] == [16, 4, 2]
    for row in range(9):
        one = {name: tensor[row : row + 1] for name, tensor in inputs.items()}
        alone = tfkit.greedy(model, max_new_tokens=int(limits[row]), scores=True, graphs=recorded_steps(model), **one)
        length = int(found.lengths[row])
        assert torch.equal(alone.ids[0], found.ids[row, :length])
        assert torch.equal(alone.log_probabilities[0], found.log_probabilities[row, :length])
        assert bool(alone.finished) == bool(found.finished[row])


@pytest.mark.parametrize("instructions", INSTRUCTIONS)
def test_forbidden_tokens_are_not_selected_and_log_probabilities_stay_those_of_all_tokens(instructions: str) -> None:
    model, filters = counting(), [tfkit.score_filter("suppress", ids=[41, 42, 50, 60])]
    graphs, inputs, calls = with_instructions(model, instructions), inputs_of(model, 6), []
    greedy = graphs.greedy
    graphs.greedy = lambda *arguments: calls.append(greedy(*arguments)) or calls[-1]
    ordinary = tfkit.greedy(model, max_new_tokens=70, scores=True, filters=filters, **inputs)
    found = tfkit.greedy(model, max_new_tokens=70, scores=True, filters=filters, graphs=graphs, **inputs)
    assert calls[-1] == 70
    assert not set(found.ids.flatten().tolist()) & {41, 42, 50, 60}
    assert torch.equal(found.ids, ordinary.ids)
    torch.testing.assert_close(found.log_probabilities, ordinary.log_probabilities, rtol=1e-3, atol=1e-4)
    assert float(found.log_probabilities.min()) < -0.7  # of a token that is not the most probable


def draw_search(draw: random.Random) -> dict[str, Any]:
    beams = draw.randint(1, 6)
    penalty = draw.choice([tfkit.GnmtLengthPenalty, tfkit.PowerLengthPenalty])(draw.choice([0.0, 0.6, 1.0, 2.5]))
    forbidden = draw.sample(range(60), draw.randint(1, 20))
    limits = torch.tensor([draw.randint(1, 80) for _ in range(4)]) if draw.random() < 0.5 else draw.choice([2, 9, 70])
    return {
        "beams": beams, "n_best": draw.randint(1, beams), "length_penalty": penalty, "max_new_tokens": limits,
        "early_stopping": draw.choice(["never", True, False]), "unfinished": draw.choice(["last", "ranked"]),
        "filters": [tfkit.score_filter("suppress", ids=forbidden)] if draw.random() < 0.6 else [],
    }  # fmt: skip


@pytest.mark.parametrize("instructions", INSTRUCTIONS)
def test_beams_in_c_find_the_bits_of_the_search_in_python(instructions: str) -> None:
    draw, ends = random.Random(3), set()
    models = [  # the first one finds all tokens equal
        built("transformer-tiny", "defaults.vocab_size=60", "nodes.logits.share=null", scale=scale) for scale in (0, 0.5, 1, 2)
    ]
    for model in models:
        model.beam_top_k = [one for one in plugin.BEAM_TOP_K if one.name.endswith(instructions)]
        with torch.no_grad():
            model.nodes["logits"].logits.weight[2].mul_(6.0)  # the end token, which is now the best one or the worst
    for _ in range(40):
        model, settings = draw.choice(models), draw_search(draw)
        inputs = inputs_of(model, 4)
        graphs, without = with_instructions(model, instructions), with_instructions(model, instructions)
        assert graphs.beams is not None
        without.beams = None
        found, wanted = (tfkit.beam_search(model, graphs=one, **inputs, **settings) for one in (graphs, without))
        assert graphs.steps
        for of_row, wanted_of_row in zip(found, wanted, strict=True):
            assert len(of_row) == len(wanted_of_row)
            for one, other in zip(of_row, wanted_of_row, strict=True):
                ends.add((one.finished, len(one.ids) > 1))
                assert one.ids.tolist() == other.ids.tolist()
                assert (one.score, one.log_probability, one.finished) == (other.score, other.log_probability, other.finished)
                assert torch.equal(one.token_log_probabilities, other.token_log_probabilities)
    assert len(ends) == 4


def test_nan_that_comes_late_is_refused() -> None:
    model = counting()
    with torch.no_grad():
        model.nodes["source"].embedding.weight[70] = torch.nan  # which every row comes to
    graphs = recorded_steps(model)
    for filters in ((), [tfkit.score_filter("suppress", ids=[0])]):
        for search in (tfkit.greedy, partial(tfkit.beam_search, beams=2)):
            with pytest.raises(tfkit.InputError, match="NaN"):
                search(model, max_new_tokens=70, graphs=graphs, filters=filters, **inputs_of(model, 6))


@pytest.mark.parametrize("instructions", INSTRUCTIONS)
def test_a_sentence_without_an_allowed_token_ends_a_search(instructions: str) -> None:
    logits, place = torch.full((4, 9), -torch.inf), torch.zeros(1, dtype=torch.int64)
    logits[:, 5] = 0.0
    logits[1, 3] = -1.0
    record, search = (getattr(steps, f"{name}_{instructions}") for name in ("record", "beams"))
    replay, result = record(lambda: logits + place, [], {})
    levels, integers = torch.zeros(3, 2, 2, dtype=torch.int64), torch.zeros(2, 1, dtype=torch.int64)
    none = torch.full((2, 1), -torch.inf)
    state = tfkit.plugin.RecordedBeams(
        ids=torch.zeros(4, 1, dtype=torch.int64), place=place, order=torch.arange(4), logits=result, totals=torch.zeros(2, 2),
        limits=torch.tensor([4, 4]), penalties=torch.ones(5), max_penalties=torch.ones(2), forbidden=torch.tensor([5]),
        end_id=None, early_stopping="never", ranked=False, rows=levels, tokens=levels.clone(), log_probs=levels.float(),
        finished=(none, none.clone(), integers, integers.bool(), integers.clone(), integers.clone(), none.clone()),
        status=torch.zeros(2, dtype=torch.uint8),
    )  # fmt: skip
    search(replay, state)
    assert state.status.tolist() == [0, 3]
    assert int(place) == 1
    assert int(state.tokens[0, 0, 0]) == 3
    assert state.totals[0].tolist()[1] == -torch.inf


def test_a_caller_that_wants_each_token_gets_it() -> None:
    model, emitted = built(), []
    graphs, inputs = recorded_steps(model), inputs_of(model, 6)
    tfkit.greedy(model, max_new_tokens=9, graphs=graphs, emit=lambda rows, ids: emitted.append(ids), **inputs)
    assert len(emitted) == 9


@pytest.mark.parametrize("instructions", INSTRUCTIONS)
@pytest.mark.parametrize(
    "name",
    [
        "transformer-tiny",
        "tiny-rotary",
        "tiny-alibi",
        "tiny-geglu",
        "tiny-batch-norm",
        "tiny-parallel",
        "transformer-fast",
        "tiny-average",
    ],
)
def test_the_first_pass_over_sources_of_a_shape_is_recorded(name: str, instructions: str) -> None:
    model = built(name, "nodes.target.start_id=1")
    graphs = with_instructions(model, instructions)
    draw = torch.Generator().manual_seed(0)
    for length in (7, 8, 5, 6, 8, 9):
        source = torch.randint(4, 60, (3, length), generator=draw)
        visible = torch.arange(length) < torch.tensor([[length], [3], [5]])
        inputs = {"source": source, "masks": {"source": visible}}
        found = tfkit.greedy(model, max_new_tokens=12, scores=True, graphs=graphs, **inputs)
        check_greedy(model, inputs | {"prompt": torch.ones(3, 1, dtype=torch.int64)}, found)
        again = tfkit.greedy(model, max_new_tokens=12, scores=True, graphs=graphs, **inputs)
        assert torch.equal(found.log_probabilities, again.log_probabilities)
        [[best], *_] = tfkit.beam_search(model, beams=3, max_new_tokens=12, graphs=graphs, **inputs)
        [[other], *_] = tfkit.beam_search(model, beams=3, max_new_tokens=12, **inputs)
        assert best.score == pytest.approx(other.score, rel=1e-4, abs=1e-4)
    if name == "tiny-alibi":
        assert {str(reason) for reason in graphs.held.refused.values()} == {"a mask of several queries has no kernel"}
    else:
        assert [key[:2] for key in graphs.held.starts] == [(4, 8), (4, 16)]


def test_a_recorded_first_pass_refuses_what_an_ordinary_one_refuses() -> None:
    model = built("transformer-tiny", "nodes.target.start_id=1")
    graphs, source = recorded_steps(model), torch.randint(4, 60, (2, 7))
    for _ in range(3):
        tfkit.greedy(model, source, max_new_tokens=5, graphs=graphs)
    assert graphs is not None
    assert graphs.held.starts
    for wrong in (source + 10_000, source.float(), torch.zeros(2, 7, 1, dtype=torch.int64)):
        with pytest.raises(tfkit.InputError) as ordinary:
            tfkit.greedy(model, wrong, max_new_tokens=5)
        with pytest.raises(tfkit.InputError) as recorded:
            tfkit.greedy(model, wrong, max_new_tokens=5, graphs=graphs)
        assert str(recorded.value) == str(ordinary.value)
    seen: list[object] = []
    handle = model.nodes["encoder"].layers[0].register_forward_hook(lambda *call: seen.append(call))
    tfkit.greedy(model, source, max_new_tokens=5, graphs=graphs)
    handle.remove()
    assert len(seen) == 1
    with torch.no_grad():
        model.nodes["encoder"].layers[0].branches.ffn.input.weight.data.mul_(-3.0)
    for _ in range(3):
        found = tfkit.greedy(model, source, max_new_tokens=5, scores=True, graphs=graphs)
        check_greedy(model, {"source": source, "prompt": torch.ones(2, 1, dtype=torch.int64)}, found)


def test_no_result_depends_on_the_searches_before() -> None:
    model = built("transformer-tiny", "nodes.target.start_id=1", "defaults.position={kind: learned, max_len: 20}")
    draw = torch.Generator().manual_seed(1)
    searches = [  # up to the last position, and with a limit beyond it that no row reaches
        {"source": torch.randint(4, 60, (2, length), generator=draw), "max_new_tokens": limit}
        for length, limit in ((7, 9), (20, 21), (17, 30), (7, 30), (9, 9))
    ]

    def scores(graphs: RecordedSteps | None, search: dict[str, Any]) -> list[Any]:
        return [
            graphs and tfkit.beam_search(model, beams=2, graphs=graphs, **search)[0][0].score,
            tfkit.greedy(model, scores=True, graphs=graphs, **search).log_probabilities.tolist(),
        ]

    with torch.no_grad():
        model.nodes["source"].embedding.weight[2].mul_(40.0)  # the end token comes early
    alone = [scores(recorded_steps(model), search) for search in searches]
    shared = recorded_steps(model)
    assert [scores(shared, search) for search in [*searches, *searches]] == [*alone, *alone]


def test_a_search_within_a_search_disturbs_it_not() -> None:
    model = built("transformer-tiny", "nodes.target.start_id=1")
    draw = torch.Generator().manual_seed(0)
    outer, inner = torch.randint(4, 60, (2, 3, 7), generator=draw)

    def searches(graphs: RecordedSteps | None, source: torch.Tensor, emit: Any = None) -> list[Any]:
        found = tfkit.greedy(model, source, max_new_tokens=9, scores=True, graphs=graphs, emit=emit)
        return [found.ids.tolist(), found.log_probabilities.tolist()]

    def beams(graphs: RecordedSteps | None, source: torch.Tensor, filters: Any = ()) -> list[float]:
        found = tfkit.beam_search(model, source, beams=2, max_new_tokens=9, graphs=graphs, filters=filters)
        return [best.score for [best] in found]

    def unchanged(scores: torch.Tensor, prefix: Any) -> torch.Tensor:
        within.append(beams(shared, inner))
        return scores

    shared, within = recorded_steps(model), []
    found = searches(shared, outer, lambda rows, ids: within.append(searches(shared, inner)))
    assert found == searches(recorded_steps(model), outer, lambda rows, ids: None)
    assert within == [searches(recorded_steps(model), inner)] * 9
    within.clear()
    assert beams(shared, outer, [unchanged]) == pytest.approx(beams(None, outer), rel=1e-4)
    assert within == [beams(recorded_steps(model), inner)] * 9
    with pytest.raises(RuntimeError, match="within"):
        tfkit.greedy(model, outer, max_new_tokens=9, graphs=shared, emit=lambda rows, ids: fail())
    assert searches(shared, outer) == searches(recorded_steps(model), outer)


def fail() -> None:
    raise RuntimeError("within")


def test_threads_have_steps_of_their_own() -> None:
    model = built()
    graphs = recorded_steps(model)
    wanted = {rows: tfkit.greedy(model, max_new_tokens=20, graphs=graphs, **inputs_of(model, rows)).ids for rows in (2, 3)}
    wrong: list[int] = []

    def work(rows: int) -> None:
        for _ in range(5):
            found = tfkit.greedy(model, max_new_tokens=20, graphs=graphs, **inputs_of(model, rows)).ids
            if not torch.equal(found, wanted[rows]):
                wrong.append(rows)

    threads = [threading.Thread(target=work, args=(2 + number % 2,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_logits_of_nan_are_refused_as_in_ordinary_steps() -> None:
    model = built()
    with torch.no_grad():
        model.nodes["decoder"].layers[0].branches.ffn.input.weight[0, 0] = torch.nan
    with pytest.raises(tfkit.InputError, match="NaN"):
        tfkit.greedy(model, max_new_tokens=4, graphs=recorded_steps(model), **inputs_of(model, 2))


@pytest.mark.parametrize("run", [
    lambda x, weight: x + int(x.sum()), lambda x, weight: torch.linalg.svdvals(x @ weight), lambda x, weight: x @ x.t(),
    lambda x, weight: torch.zeros(4, 4).copy_(x), lambda x, weight: x.sum(), lambda x, weight: x.long().bitwise_not(),
    lambda x, weight: torch.relu(x.half()), lambda x, weight: x.cumsum(0), lambda x, weight: x.sum(1, dtype=torch.float16),
    lambda x, weight: x[x.argmax(0)],
], ids=[
    "number", "unknown", "product", "written to a new tensor", "several axes", "integers", "half", "sums", "half sums",
    "indices",
])  # fmt: skip
def test_what_cannot_be_repeated_is_not_recorded(run) -> None:
    x, weight = torch.randn(4, 4), torch.randn(4, 4)
    with pytest.raises(CannotRecord):
        steps.record_avx2(lambda: run(x, weight), [weight], {})


OPERATIONS = [
    lambda x, y, m: torch.where(m, x, y),
    lambda x, y, m: x.masked_fill(m, -1.5),
    lambda x, y, m: x.t() * y + 2.0,
    lambda x, y, m: (3.0 - x) / y,
    lambda x, y, m: torch.cat([x, y[:, :3], x], 1),
    lambda x, y, m: torch.stack([x, y], 1),
    lambda x, y, m: x.mean(1, keepdim=True) + y.amax(0),
    lambda x, y, m: (m & (x > y)) | ~m,
    lambda x, y, m: m.any(1),
    lambda x, y, m: m.all(0),
    lambda x, y, m: x.clamp(-0.5, 0.25),
    lambda x, y, m: x.double().sin() ** 2,
    lambda x, y, m: (m * 10).long() + 3,
    lambda x, y, m: functional.gelu(x),
    lambda x, y, m: functional.gelu(x, approximate="tanh"),
    lambda x, y, m: functional.silu(x),
    lambda x, y, m: torch.sigmoid(x) + torch.tanh(y),
    lambda x, y, m: torch.relu(x.t()),
    lambda x, y, m: torch.relu(x),
    lambda x, y, m: x.abs().rsqrt(),
    lambda x, y, m: x.exp().log(),
    lambda x, y, m: torch.addcmul(x, x, y),
    lambda x, y, m: x.add_(1.0),
    lambda x, y, m: torch.minimum(x, y) - torch.maximum(x, y),
    lambda x, y, m: x[:, None, :, None] + y[:, :, None, None][:, :, :1],
]


@pytest.mark.parametrize("instructions", INSTRUCTIONS)
@pytest.mark.parametrize("size", [1, 5, 16, 37])
def test_each_operation_gives_what_torch_gives_for_numbers_of_every_replay(size: int, instructions: str) -> None:
    draw = torch.Generator().manual_seed(size)
    record = steps.record_avx2 if instructions == "avx2" else steps.record_avx512
    for operation in OPERATIONS:
        x, y, m = torch.randn(size, size), torch.randn(size, size), torch.zeros(size, size, dtype=torch.bool)
        replay, result = record(lambda operation=operation, x=x, y=y, m=m: operation(x, y, m), [], {})
        for _ in range(2):
            x.copy_(torch.randn(size, size, generator=draw))
            y.copy_(torch.randn(size, size, generator=draw))
            m.copy_(torch.rand(size, size, generator=draw) < 0.5)
            x.view(-1)[0], y.view(-1)[-1] = torch.nan, torch.inf
            wanted = operation(x.clone(), y, m)
            replay()
            torch.testing.assert_close(result, wanted, rtol=1e-5, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize("instructions", INSTRUCTIONS)
def test_results_that_are_read_no_more_give_their_memory_to_others(instructions: str) -> None:
    record, (x, y) = getattr(steps, f"record_{instructions}"), torch.randn(2, 100, 10)

    def step() -> tuple[torch.Tensor, torch.Tensor]:
        early, total, ones = x * 3.0, x, torch.ones(100, 10)
        for number in range(50):
            total = (total + y) * 0.9 + (early if number == 40 else ones)
        return total, early.t()[:2]

    replay, results = record(step, [], {})
    memory = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in replay.kept}
    assert sum(memory.values()) < 10 * 4 * x.numel()
    for _ in range(2):
        x.normal_()
        y.normal_()
        wanted = step()
        replay()
        torch.testing.assert_close(results, wanted)


@pytest.mark.parametrize("instructions", INSTRUCTIONS)
def test_an_index_outside_of_its_tensor_reads_and_writes_nothing(instructions: str) -> None:
    record = steps.record_avx2 if instructions == "avx2" else steps.record_avx512
    table, cache, index = torch.randn(5, 3), torch.zeros(2, 4, 3), torch.tensor([1])
    read, row = record(lambda: table.index_select(0, index) + index, [table], {})
    write, _ = record(lambda: cache.index_copy_(1, index, table[None, :1].expand(2, 1, 3) + index), [table], {})
    index.fill_(4)
    read()
    torch.testing.assert_close(row, table[4:] + 4)
    for number in (-1, 5, 1 << 40):
        index.fill_(number)
        for replay in (read, write):
            with pytest.raises(IndexError, match="that its tensor does not have"):
                replay()


@pytest.mark.parametrize("instructions", INSTRUCTIONS)
@pytest.mark.parametrize("change", ["none", "keys", "slots"])
def test_rows_of_a_cache_that_another_operation_reads_are_copied_in_time(change: str, instructions: str) -> None:
    record = steps.record_avx2 if instructions == "avx2" else steps.record_avx512
    cache, slots, place = torch.randn(2, 3, 4), torch.tensor([4, 0, 3, 3, 1, 5]), torch.tensor([1])

    def step() -> torch.Tensor:
        cache.index_copy_(1, place, (place + 0.5).expand(2, 1, 4))
        rows = cache.flatten(0, 1).index_select(0, slots).view(2, 3, 4)
        if change == "keys":
            cache.add_(1.0)
        if change == "slots":
            slots.add_(-slots)
        return rows.transpose(1, 2) * 2.0

    before = cache.clone(), slots.clone()
    replay, result = record(step, [], {})
    for position in (0, 2):
        place.fill_(position)
        found = []
        for run in (step, lambda: replay() or result):
            cache.copy_(before[0])
            slots.copy_(before[1])
            found.append(run().clone())
        torch.testing.assert_close(*found)


def test_the_fastest_recorder_of_this_processor_is_taken() -> None:
    model = built()
    assert recorded_steps(model) is not None
    model.step_recorders = [
        StepRecorder(name="other", summary="", needs=("no_such_instruction",), record="x:y", relative_time=0.1)
    ]
    assert recorded_steps(model) is None
