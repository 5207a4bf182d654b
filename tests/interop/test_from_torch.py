"""Modules of torch.nn and the models made from them: equal outputs and gradients in float64, and refusals by name."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

import tfkit
from tfkit.interop import from_torch
from tfkit.spec import to_yaml

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore:enable_nested_tensor is True:UserWarning"),
]

M, HEADS, F = 12, 3, 20  # three heads, so that neither heads nor groups of features can be swapped unseen
SHAPE = {"d_model": M, "nhead": HEADS, "dim_feedforward": F, "batch_first": True}
SEEN = torch.arange(7) < torch.tensor([[7], [4]])  # (B, K)
SEEN_TARGET = torch.arange(5) < torch.tensor([[5], [3]])
HIDDEN = torch.ones(5, 5, dtype=torch.bool).triu(1)


@pytest.fixture(autouse=True)
def _float64(one_thread):
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(3)
    yield
    torch.set_default_dtype(before)


def shaken(module):
    """With weights, norms and biases that are all random."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return module.eval()


def equal(theirs, ours, module, model, seen, inputs):
    """Outputs at real tokens, and the gradients of all inputs and weights. torch keeps three projections in one matrix."""
    torch.testing.assert_close(ours[seen], theirs[seen], rtol=0, atol=1e-12)
    draw = torch.randn_like(theirs) * seen[..., None]
    wanted = torch.autograd.grad((theirs * draw).sum(), [*inputs, *module.parameters()])
    found = torch.autograd.grad((ours * draw).sum(), [*inputs, *model.parameters()])
    assert sum(each.numel() for each in found) == sum(each.numel() for each in wanted)
    for mine, its in zip(found[: len(inputs)], wanted[: len(inputs)], strict=True):
        torch.testing.assert_close(mine, its, rtol=0, atol=1e-12)

    def sorted_values(gradients):
        return torch.cat([each.flatten() for each in gradients]).sort().values

    torch.testing.assert_close(sorted_values(found), sorted_values(wanted), rtol=0, atol=1e-12)


def drawn(*lengths, width=M):
    return [torch.randn(2, length, width, requires_grad=True) for length in lengths]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"norm_first": True, "activation": "gelu"},
        {"bias": False, "activation": functional.silu, "layer_norm_eps": 1e-3},
        {"activation": nn.GELU(approximate="tanh"), "dropout": 0.0},
    ],
    ids=["post", "pre", "no biases", "gelu_tanh"],
)
def test_transformer(options):
    module = shaken(nn.Transformer(num_encoder_layers=2, num_decoder_layers=1, **SHAPE, **options))
    model, (x, y) = from_torch(module), drawn(7, 5)
    theirs = module(
        x, y, tgt_mask=HIDDEN, src_key_padding_mask=~SEEN, memory_key_padding_mask=~SEEN, tgt_key_padding_mask=~SEEN_TARGET
    )
    ours = model(source=x, target=y, masks={"source": SEEN, "target": SEEN_TARGET}).decoder
    equal(theirs, ours, module, model, SEEN_TARGET, [x, y])
    assert tfkit.parse_spec(to_yaml(model.spec), tfkit.load_catalogue()) == model.spec


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("norm", [None, nn.LayerNorm, nn.RMSNorm])
def test_transformer_encoder(causal, norm):
    final = norm and norm(M, eps=1e-4)
    layer = nn.TransformerEncoderLayer(norm_first=True, **SHAPE)
    module = shaken(nn.TransformerEncoder(layer, 2, final, enable_nested_tensor=False))
    model, (x,) = from_torch(module, causal=causal), drawn(5)
    ours = model(source=x, masks={"source": SEEN_TARGET}).encoder
    equal(module(x, HIDDEN if causal else None, ~SEEN_TARGET), ours, module, model, SEEN_TARGET, [x])


@pytest.mark.parametrize("whole", [True, False], ids=["stack", "layer"])
@pytest.mark.parametrize("causal", [True, False])
def test_transformer_decoder(whole, causal):
    module = nn.TransformerDecoderLayer(activation=nn.Tanh(), **SHAPE)
    module = shaken(nn.TransformerDecoder(module, 2) if whole else module)
    model, (memory, x) = from_torch(module, causal=causal), drawn(7, 5)
    theirs = module(x, memory, HIDDEN if causal else None, memory_key_padding_mask=~SEEN, tgt_key_padding_mask=~SEEN_TARGET)
    ours = model(memory=memory, target=x, masks={"memory": SEEN, "target": SEEN_TARGET}).decoder
    equal(theirs, ours, module, model, SEEN_TARGET, [memory, x])


def test_layers_may_differ_or_be_the_same():
    module = shaken(nn.TransformerEncoder(nn.TransformerEncoderLayer(**SHAPE), 2, enable_nested_tensor=False))
    module.layers[1].activation = functional.gelu
    (x,) = drawn(5)
    every = torch.ones(2, 5, dtype=torch.bool)
    model = from_torch(module)
    equal(module(x), model(source=x).encoder, module, model, every, [x])
    module.layers[1] = module.layers[0]
    model = from_torch(module)
    equal(module(x), model(source=x).encoder, module, model, every, [x])


@pytest.mark.parametrize(
    ("cross", "options"),
    [(False, {}), (False, {"bias": False}), (True, {}), (True, {"bias": False}), (True, {"kdim": 8, "vdim": 8})],
)
def test_attention_is_a_layer_with_a_residual(cross, options):
    module = shaken(nn.MultiheadAttention(M, HEADS, batch_first=True, **options))
    model, (x,) = from_torch(module, cross=cross), drawn(5)
    (memory,) = drawn(7, width=options.get("kdim", M)) if cross else [x]
    seen = SEEN if cross else SEEN_TARGET
    theirs = x + module(x, memory, memory, key_padding_mask=~seen)[0]
    given = {"source": x, "memory": memory} if cross else {"source": x}
    ours = model(**given, masks={"memory" if cross else "source": seen}).attention
    equal(theirs, ours, module, model, torch.ones(2, 5, dtype=torch.bool) if cross else SEEN_TARGET, list(given.values()))


@pytest.mark.parametrize("kind", [nn.GRU, nn.LSTM, nn.RNN])
@pytest.mark.parametrize("options", [{}, {"bidirectional": True, "num_layers": 2}, {"bias": False}])
def test_recurrent(kind, options):
    module = shaken(kind(M, 8, batch_first=True, **options))
    model, (x,) = from_torch(module), drawn(5)
    equal(module(x)[0], model(source=x).encoder, module, model, torch.ones(2, 5, dtype=torch.bool), [x])


class OwnLayer(nn.TransformerEncoderLayer):
    pass


def mixed_dropouts():
    layer = nn.TransformerEncoderLayer(activation=torch.sin, **SHAPE)
    layer.dropout1.p, layer.norm2 = 0.3, nn.GroupNorm(2, M)
    return layer


REFUSED = [
    (lambda: nn.Linear(3, 4), {}, ["known are torch.nn's own classes Transformer,"]),
    (lambda: nn.TransformerEncoderLayer(activation=torch.sin, **SHAPE), {}, ["its activation is `", ]),
    (lambda: nn.TransformerEncoderLayer(activation=lambda x: x, **SHAPE), {}, ["its activation is `{here}."]),
    (mixed_dropouts, {}, ["the dropouts after its", "a norm is torch.nn.modules.normalization.GroupNorm", "the norms of a",
                          "its activation is `"]),
    (lambda: OwnLayer(**SHAPE), {}, ["known are torch.nn's own classes"]),
    (lambda: nn.TransformerEncoder(OwnLayer(**SHAPE), 2, enable_nested_tensor=False), {}, ["a layer is {here}.OwnLayer, not"]),
    (lambda: nn.Transformer(custom_encoder=nn.Identity(), **SHAPE), {}, ["its parts are torch.nn.modules.linear.Identity and"]),
    (lambda: nn.MultiheadAttention(M, HEADS, add_bias_kv=True, add_zero_attn=True), {}, ["`add_bias_kv`", "`add_zero_attn`"]),
    (lambda: nn.MultiheadAttention(M, HEADS, kdim=4, vdim=5), {"cross": True}, ["keys have 4 features (kdim) and values 5"]),
    (lambda: nn.MultiheadAttention(M, HEADS, kdim=4, vdim=4), {}, ["keys have a width of their own: write cross=True"]),
    (lambda: nn.MultiheadAttention(M, HEADS), {"cross": True, "causal": True}, ["positions of two sequences have no order"]),
    (lambda: nn.LSTM(M, 8, proj_size=4), {}, ["its states are projected to 4 features"]),
    (lambda: nn.GRU(M, 8, 2, dropout=0.5), {}, ["its dropout is 0.5: tfkit drops outputs of the last layer too"]),
    (lambda: nn.GRU(M, 8), {"cross": True}, ["`cross` belongs to MultiheadAttention"]),
]  # fmt: skip


@pytest.mark.parametrize(("make", "options", "expected"), REFUSED)
def test_what_no_spec_can_say_is_refused(make, options, expected):
    module = make()
    expected = [start.replace("{here}", __name__) for start in expected]
    with pytest.raises(tfkit.InputError) as refused:
        from_torch(module, **options)
    said = [each.message.partition(": ") for each in refused.value.diagnostics]
    assert {head for head, _, _ in said} == {f"no spec equals this {type(module).__name__}"}
    assert [tail[: len(start)] for (_, _, tail), start in zip(said, expected, strict=True)] == expected
