"""`tfkit plan`."""

import types
from pathlib import Path

import pytest

from tfkit import load_catalogue
from tfkit.attention.auto_table import AutoRow
from tfkit.plugin import AttentionBackend, Capabilities, Device, Options, Range, hookimpl

BASE = "specs/transformer-base.yaml"
FOLDED = ["encoder.0-5.self_attention", "decoder.0-5.self_attention", "decoder.0-5.cross_attention"]


@pytest.fixture
def hopper(installed):
    """A backend for Hopper alone, with one measured row."""
    capabilities = Capabilities(
        devices=[Device(kind="cuda", minimum_capability=(9, 0))], dtypes={"bfloat16"}, head_dim=Range(multiple=8),
        query_length=Range(), key_length=Range(multiple=128), mask_terms={"causal", "key_visible"}, dropout=True, backward=True,
    )  # fmt: skip
    rows = (AutoRow(device="cuda", dtypes={"bfloat16"}, lengths=(257, None), relative_time=0.25),)
    entry = AttentionBackend(name="acme.hopper", summary="s", attend="acme:attend", capabilities=capabilities, auto=rows)
    plugin = types.ModuleType("acme")
    plugin.tfkit_attention_backends = hookimpl(lambda: [entry])
    catalogue = load_catalogue().with_plugin(plugin, "acme")
    installed(catalogue)


def test_every_site_is_planned_once_and_equal_ones_are_folded(tfkit):
    data = tfkit("plan", BASE, "--lengths", "64", "--json").json()
    assert [row["name"] for row in data["sites"]] == FOLDED
    sites = [site for row in data["sites"] for site in row["sites"]]
    assert len(sites) == len(set(sites)) == 18
    assert data["target"] == {
        "device": "cpu",
        "cuda_capability": None,
        "dtype": "float32",
        "training": True,
        "compiled": False,
        "queries": 64,
        "keys": 64,
    }
    row = data["sites"][0]
    assert (row["requested"], row["lengths"]) == ("auto", None)
    eager = {"backend": "eager", "accepted": True, "reasons": [], "depends": [], "relative_time": 1.0, "published": None}
    assert eager in [{name: candidate[name] for name in eager} for candidate in row["candidates"]]


def test_classes_of_lengths_cover_every_length_once(tfkit, hopper):
    data = tfkit("plan", BASE, "--device", "cuda:sm90", "--dtype", "bfloat16", "--json").json()
    for name in FOLDED:
        ranges = [row["lengths"] for row in data["sites"] if row["name"] == name]
        assert ranges[0][0] == 1
        assert ranges[-1][1] is None
        assert [high + 1 for _, high in ranges[:-1]] == [low for low, _ in ranges[1:]]


def test_auto_takes_the_fastest_that_is_measured_there(tfkit, hopper):
    words = ["plan", BASE, "--device", "cuda:sm90", "--dtype", "bfloat16", "--json", "--lengths"]
    assert {row["chosen"] for row in tfkit(*words, "512").json()["sites"]} & {"acme.hopper", "sdpa"}
    long = tfkit(*words, "512").json()["sites"][0]["candidates"]
    assert next(candidate for candidate in long if candidate["backend"] == "acme.hopper")["relative_time"] == 0.25
    short = tfkit(*words, "256").json()["sites"][0]["candidates"]
    refused = next(candidate for candidate in short if candidate["backend"] == "acme.hopper")
    assert (refused["accepted"], refused["relative_time"]) == (False, None)


@pytest.mark.parametrize(
    ("device", "dtype", "lengths", "code", "message"),
    [
        ("cuda:sm90", "bfloat16", "64x256", 0, "accepted"),
        ("cuda:sm_90", "bfloat16", "64x256", 0, "accepted"),
        ("cuda", "bfloat16", "64x256", 0, "depends on the compute capability"),
        ("cuda:sm80", "bfloat16", "64x256", 1, "sm_80 is older than sm_90"),
        ("cuda:sm90", "float32", "64x256", 1, "dtype float32 is not among bfloat16"),
        ("cuda:sm90", "bfloat16", "256x64", 1, "key length 64 is outside 1 up, multiples of 128"),
        ("cpu", "bfloat16", "64x256", 1, "device cpu is not among cuda"),
    ],
)
def test_a_gpu_that_is_not_there_is_planned_for(tfkit, hopper, device, dtype, lengths, code, message):
    words = [BASE, "--backend", "acme.hopper", "--device", device, "--dtype", dtype, "--lengths", lengths]
    done = tfkit("plan", *words)
    assert done.code == code, done.out + done.err
    assert message in " ".join(done.out.split())
    rows = tfkit("plan", *words, "--json").json()["sites"]
    assert {row["chosen"] for row in rows} == {None if code else "acme.hopper"}
    assert [line.split(":")[0] for line in done.err.splitlines()] == ([f"TFK060 {name}" for name in FOLDED] if code else [])


def test_every_reason_is_reported(tfkit, hopper):
    words = ["--backend", "acme.hopper", "--lengths", "5x7", "--compiled", "--json"]
    done = tfkit("plan", "specs/gemma2-9b.yaml", *words)
    reasons = done.json()["sites"][0]["candidates"][0]["reasons"]
    for part in ("device cpu", "dtype float32", "key length 7", "softcap", "compile", "fewer key/value heads", "window"):
        assert any(part in reason for reason in reasons), (part, reasons)


def test_a_list_falls_back_in_its_order(tfkit):
    done = tfkit("plan", BASE, "--backend", "flex,sdpa", "--json")
    assert {row["chosen"] for row in done.json()["sites"]} == {"sdpa"}
    inference = tfkit("plan", BASE, "--backend", "flex,sdpa", "--inference", "--json")
    assert {row["chosen"] for row in inference.json()["sites"]} == {"flex"}
    assert [candidate["backend"] for candidate in done.json()["sites"][0]["candidates"]] == ["flex", "sdpa"]


def test_dropout_is_part_of_the_training_request_only(tfkit):
    words = ["specs/t5-small.yaml", "--backend", "flex", "--device", "cuda:sm90", "--json"]
    assert "dropout is not declared" in str(tfkit("plan", *words).json())
    assert {row["chosen"] for row in tfkit("plan", *words, "--inference").json()["sites"]} == {"flex"}


def test_text_shares_a_block_among_equal_answers(tfkit):
    done = tfkit("plan", BASE, "--backend", "eager")
    assert done.out.count("requested: eager") == 1
    assert ", ".join(FOLDED) in done.out


def test_a_compute_capability_begins_with_no_zero(tfkit):
    done = tfkit("plan", BASE, "--device", "cuda:sm00")
    assert done.code == 2
    assert "unknown device `cuda:sm00`; write cpu, cuda, or cuda:sm90" in done.err


def test_a_model_without_attention(tfkit, small):
    small.write_text(
        "tfkit: 1\nname: bag\nnodes:\n  words: {kind: tokens, d_model: 8, vocab_size: 9}\n"
        "  bag: {kind: pool, input: words, take: mean}\noutputs: [bag]\n"
    )
    done = tfkit("plan", small)
    assert done.code == 0
    assert "no attention" in done.out
    assert tfkit("plan", small, "--json").json()["sites"] == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--device", "tpu"], "cuda:sm90"),
        (["--device", "cuda:sm9"], "cuda:sm90"),
        (["--device", "cuda:0"], "cuda:sm90"),
        (["--dtype", "float23"], "did you mean `float32`?"),
        (["--dtype", ""], "float64"),
        (["--lengths", "3x"], "128x512"),
        (["--lengths", "x"], "128x512"),
        (["--lengths", "0"], "from 1"),
        (["--lengths", "3x4x5"], "whole number"),
        (["--backend", "flsx"], "TFK012"),
        (["--backend", ","], "commas"),
        (["--backend", "flex,auto"], "write it alone"),
        (["--compild"], "did you mean `--compiled`?"),
        (["--inference=yes"], "takes no value"),
    ],
)
def test_a_wrong_command_line_is_reported(tfkit, words, message):
    done = tfkit("plan", BASE, *words)
    assert (done.code, done.out) == (2, "")
    assert message in done.err


class Needy(Options):
    block: int


@pytest.mark.parametrize("backend", [(), ("--backend", "flex"), ("--backend", "eager")])
def test_a_backend_with_an_option_that_must_be_written_disturbs_nobody(tfkit, installed, backend):
    """Who could serve a site instead is asked of every backend, and this one cannot be asked without its option."""
    measured = (AutoRow(device="cpu", dtypes={"float32"}, relative_time=0.1),)
    entry = AttentionBackend(
        name="acme.needy", summary="s", attend="acme:attend", options=Needy, capabilities=Capabilities(), auto=measured
    )
    plugin = types.ModuleType("acme")
    plugin.tfkit_attention_backends = hookimpl(lambda: [entry])
    catalogue = load_catalogue().with_plugin(plugin, "acme")
    installed(catalogue)
    done = tfkit("plan", BASE, *backend)
    assert done.code == (1 if "flex" in backend else 0)
    assert "TFK099" not in done.err
    assert "acme.needy" not in done.out + done.err


def test_a_length_beyond_every_position_table_is_refused(tfkit):
    done = tfkit("plan", "specs/gpt2.yaml", "--lengths", "1x1025")
    assert (done.code, done.out) == (2, "")
    assert done.err == "TFK090 argument --lengths: 1025 is longer than the position table, 1024\n"
    assert tfkit("plan", "specs/gpt2.yaml", "--lengths", "1024").code == 0
    assert tfkit("plan", BASE, "--lengths", "100000").code == 0


def test_a_published_figure_is_marked(tfkit):
    on_b200 = ("--device", "cuda:sm100", "--dtype", "bfloat16")
    words = ("plan", "specs/gpt2.yaml", *on_b200, "--inference", "--lengths", "1024x1024")
    source = "https://github.com/Dao-AILab/flash-attention/issues/1589"
    text = tfkit(*words).out
    assert "0.21 x eager (published)  accepted" in text
    assert f"figures marked (published) were not measured by tfkit: {source}" in text
    candidates = tfkit(*words, "--json").json()["sites"][0]["candidates"]
    published = {candidate["backend"]: candidate["published"] for candidate in candidates}
    assert published["sdpa"] == source
    assert published["eager"] is None
    assert "published" not in tfkit("plan", "specs/transformer-base.yaml").out


def test_an_estimated_figure_is_marked_with_its_formula(tfkit):
    words = ("plan", "specs/transformer-base.yaml", "--device", "cuda:sm80", "--dtype", "bfloat16")
    text = " ".join(tfkit(*words).out.split())
    assert "0.19 x eager (estimated) accepted" in text
    assert "roofline with the rates of https://arxiv.org/abs/2307.08691. `tfkit bench auto --device cuda` measures" in text
    row = tfkit(*words, "--json").json()["sites"][0]["candidates"][0]["rows"][-1]
    assert (row["estimated"], row["measured"]) == ("roofline with the rates of https://arxiv.org/abs/2307.08691", None)


def test_the_kernels_of_sdpa_are_named_and_how_others_get_into_the_table(tfkit):
    words = ("plan", "specs/transformer-base.yaml", "--device", "cuda:sm80", "--dtype", "bfloat16")
    text = " ".join(tfkit(*words).out.split())
    assert "sdpa runs torch's flash kernel, and efficient for batches with padding, whose mask is dense" in text
    data = tfkit(*words, "--json").json()
    assert f"sdpa: torch {data['sdpa']['torch']} tries flash, efficient, math, cudnn; " in text
    assert {row["sdpa_kernels"]["masked"] for row in data["sites"]} == {"efficient"}
    names = ",".join(sorted({name for row in data["sites"] for name in row["without_dense"]}))
    assert f"tfkit bench auto --device cuda --backends sdpa,{names} --json auto.json" in text
    assert "fused" in names.split(",")
    assert "sdpa" not in tfkit("plan", "specs/transformer-base.yaml", "--json").json()


def test_cudnn_is_planned_for_a_gpu_and_refused_for_known_bugs(tfkit):
    words = ["plan", "specs/transformer-base.yaml", "--backend", "cudnn", "--device", "cuda:sm90", "--dtype", "bfloat16"]
    assert {row["chosen"] for row in tfkit(*words, "--lengths", "512", "--json").json()["sites"]} == {"cudnn"}
    done = tfkit(*words, "--lengths", "320")
    assert done.code == 1
    assert "https://github.com/pytorch/pytorch/issues/196678" in done.out
    assert tfkit(*words, "--lengths", "320", "--inference").code == 0
    assert "device cpu is not among cuda" in tfkit(*words[:4]).out


def test_sites_where_the_backward_of_sdpa_cancels_are_reported(tfkit):
    """Without a norm anywhere; a norm at the end of the encoder bounds the memory alone, and eager rounds less."""
    bare = ("plan", "specs/tiny-normless.yaml", "--lengths", "600", "--backend", "sdpa")
    sites = ["encoder.0-3.self_attention", "decoder.0-3.self_attention", "decoder.0-3.cross_attention"]
    assert tfkit(*bare, "--json").json()["cancelling"] == sites
    message = " ".join(tfkit(*bare).out.split())
    assert f"{', '.join(sites)}: no norm bounds their inputs" in message
    assert tfkit(*bare, "--json", "--set", "encoder.final_norm=layer_norm").json()["cancelling"] == sites[:2]
    assert tfkit(*bare, "--json", "--inference").json()["cancelling"] == []
    assert tfkit(*bare[:-1], "eager", "--json").json()["cancelling"] == []
    for spec in ("transformer-prenorm", "gpt2", "transformer-base", "albert-base"):
        assert tfkit("plan", f"specs/{spec}.yaml", "--backend", "sdpa", "--json").json()["cancelling"] == [], spec


def test_int8_says_what_computes_it_and_what_it_saves(tfkit, monkeypatch):
    from tfkit.nn import precision

    kernel = load_catalogue().find("int8_kernel", "fbgemm_avx2")
    monkeypatch.setattr(precision, "fastest", lambda kernels: kernel)
    words = ["plan", BASE, "--inference", "--precision", "int8"]
    products = tfkit(*words, "--json").json()["products"]
    assert products["kernel"] == "FBGEMM with AVX2"
    assert len(products["weights"]) == 6 * 6 + 6 * 10 + 1
    assert products["weights"]["nodes.logits"][1] == 512
    assert 0.24 < products["bytes"] / products["float32_bytes"] < 0.27
    assert "int8: 97 products by FBGEMM with AVX2, weights of " in tfkit(*words).out
    small = ["--set", "defaults.d_model=16", "--set", "defaults.vocab_size=500", "--set", "expect=null"]
    assert "int8: no weight is large enough" in tfkit(*words, *small).out
    assert "products" not in tfkit("plan", BASE, "--json").json()
    for more, code in ((["--device", "cuda:sm90"], "TFK047"), (["--dtype", "bfloat16"], "TFK090")):
        done = tfkit(*words, *more)
        assert (done.code, done.out) == (2, "")
        assert done.err.startswith(code)
    assert tfkit("plan", BASE, "--precision", "int8").err.startswith("TFK090 --precision int8 is for decoding")
    monkeypatch.setattr(precision, "fastest", lambda kernels: None)
    assert "no int8 products" in tfkit(*words).err


OLMO = ("plan", "specs/olmo2-7b.yaml", "--lengths", "4096", "--gpus")


def test_a_decoder_of_7b_is_planned_for_8_gpus(tfkit):
    """Weights, gradients and Adam's state take 16 bytes a weight over all GPUs, as in ZeRO, section 3.1."""
    done = tfkit(*OLMO, "8", "--memory", "80GB", "--json")
    assert done.code == 0
    data = done.json()
    assert (data["target"]["device"], data["target"]["dtype"]) == ("cuda", "bfloat16")
    plan = data["training"]
    by_name = {(each["sharding"], each["checkpointing"]): each for each in plan["choices"]}
    full = by_name["fsdp", False]
    assert full["bytes"]["optimiser"] == 2 * full["bytes"]["weights"] == 8 * 7298617344 // 8
    assert by_name["ddp", False]["bytes"]["optimiser"] == 8 * 7298617344
    assert [each["fits"] for each in plan["choices"]] == [False, True, True, False, True, True]
    assert plan["choices"][plan["chosen"]] == full
    assert plan["command"] == (
        "torchrun --nproc-per-node 8 --no-python tfkit train RECIPE -o RUN --device cuda --fsdp --set batching.tokens=4096 "
        "--set batching.max_length=4096 --set precision=bfloat16 --set batching.accumulate=8"
    )
    text = tfkit(*OLMO, "8", "--memory", "80GB").out
    assert "fits with fsdp" in text
    joined = " ".join(text.replace("\\\n", " ").split())
    assert plan["command"] in joined


def test_what_a_gpu_sends_is_that_of_the_collectives(tfkit):
    """A ring sends each rank's part 7 times of 8; all-reduce does it twice. Root weights are gathered once, in float32."""
    (ddp, zero2, fsdp, *_) = tfkit(*OLMO, "8", "--memory", "80GB", "--json").json()["training"]["choices"]
    weights, root = 7298617344, 2 * 100352 * 4096 + 4096
    assert ddp["sent"] == {"all_reduce": 2 * 4 * weights * 7 // 8}
    gathered = (2 * 2 * (weights - root) + 4 * root) * 7 // 8
    assert fsdp["sent"] == {"all_gather": gathered, "reduce_scatter": 4 * weights * 7 // 8}
    assert zero2["sent"]["all_gather"] == (2 * (weights - root) + 4 * root) * 7 // 8


def test_what_does_not_fit_is_said_with_the_reason(tfkit):
    done = tfkit(*OLMO, "64", "--memory", "24GB")
    assert done.code == 1
    assert "a process validates a copy of the whole model, 27.2 GiB, however many GPUs there are" in " ".join(done.out.split())
    assert tfkit(*OLMO, "64", "--memory", "24GB", "--json").json()["training"]["command"] is None
    small = tfkit("plan", "specs/transformer-big.yaml", "--gpus", "2", "--memory", "4GB", "--batch-tokens", "25000")
    assert (small.code, "use more GPUs, fewer --batch-tokens" in " ".join(small.out.split())) == (1, True)


def test_checkpointing_and_several_machines_are_in_the_command(tfkit):
    words = ("plan", "specs/transformer-big.yaml", "--batch-tokens", "25000", "--memory", "24GB", "--json", "--gpus")
    assert "activation_checkpointing=true" in tfkit(*words, "4").json()["training"]["command"]
    command = tfkit(*words, "16").json()["training"]["command"]
    assert command.startswith("torchrun --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint HOST:29500 ")
    assert tfkit(*words, "1").json()["training"]["command"].startswith("tfkit train RECIPE")
    image = tfkit("plan", "specs/vit-b16.yaml", "--gpus", "1", "--memory", "8GiB", "--json").json()["training"]
    assert (image["batch"]["rows"], "batching.images=20" in image["command"]) == (20, True)


def test_kinds_that_do_not_say_what_they_keep_are_named(tfkit):
    words = ("--gpus", "2", "--memory", "80GB")
    assert "Less exact: activations of rnn" in " ".join(tfkit("plan", "specs/rnnsearch.yaml", *words).out.split())
    assert tfkit("plan", BASE, *words, "--json").json()["training"]["inexact"] == []


def test_a_stack_that_checkpoints_by_itself_keeps_less(tfkit):
    words = ("plan", "specs/olmo2-7b.yaml", "--gpus", "8", "--memory", "80GB", "--json")
    plain, own = (tfkit(*words, *more).json()["training"]["choices"] for more in ((), ("--set", "body.checkpoint=true")))
    assert own[0]["bytes"]["activations"] < plain[0]["bytes"]["activations"] / 5
    assert own[3] == plain[3]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--memory", "80GB"], "--memory belongs to --gpus"),
        (["--batch-tokens", "80"], "--batch-tokens belongs to --gpus"),
        (["--gpus", "8"], "--gpus needs the memory of a GPU"),
        (["--gpus", "8", "--memory", "80GB", "--inference"], "--gpus plans training, and --inference is given"),
        (["--gpus", "8", "--memory", "80GB", "--device", "cpu"], "--gpus plans CUDA devices"),
        (["--gpus", "8", "--memory", "80GB", "--dtype", "float64"], "models are not trained in float64"),
        (["--gpus", "8", "--memory", "80"], "a size is written 80GB or 80GiB, `80` is written"),
        (["--gpus", "8", "--memory", "0GB"], "a size is written 80GB or 80GiB, `0GB` is written"),
        (["--gpus", "0", "--memory", "80GB"], "a whole number from 1 is expected, `0` is written"),
        (["--gpus", "99999999", "--memory", "80GB"], "at most 65,536 GPUs are planned for"),
        (["--gpus", "8", "--memory", "80GB", "--batch-tokens", "0"], "a whole number from 1 is expected"),
    ],
)
def test_wrong_arguments_of_gpus_are_refused(tfkit, words, message):
    done = tfkit("plan", BASE, *words)
    assert (done.code, message in done.err, done.out) == (2, True, ""), done.err


@pytest.mark.slow
def test_every_shipped_spec_is_planned(tfkit):
    for spec in sorted(Path("specs").glob("*.yaml")):
        plan = tfkit("plan", str(spec), "--gpus", "2", "--memory", "9999999GB", "--json").json()["training"]
        assert plan["choices"][0]["bytes"]["weights"] > 0, spec
        assert plan["choices"][0]["fits"], spec


def test_chosen_backends_that_may_hide_nan_are_named(tfkit):
    """On CUDA torch's kernels give zeros where there is no softmax; on a CPU `sdpa` does not."""
    words = ["plan", "specs/transformer-base.yaml", "--backend", "sdpa"]
    assert "nan_as_zero" not in tfkit(*words, "--json").json()
    on_cuda = [*words, "--device", "cuda:sm90", "--dtype", "bfloat16"]
    assert tfkit(*on_cuda, "--json").json()["nan_as_zero"] == ["sdpa"]
    assert "the output may be zero instead of NaN: sdpa" in " ".join(tfkit(*on_cuda).out.split())
