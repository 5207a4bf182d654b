"""Measured products while decoding: which kernel the table chooses, what it computes, and tables that cannot be used."""

import json

import pytest
import torch

import tfkit
from tfkit import InputError
from tfkit.cpu import products, small_batch
from tfkit.cpu.packed_weight import PackedWeight, SearchProducts
from tfkit.cpu.product_table import Choice
from tfkit.inspection import product_kernels, product_machine

KERNELS = ("mkl", "onednn", "transposed", "packed")
ROW = {"threads": 1, "outputs": 64, "inputs": 32, "rows": [1, 4], "fastest": "packed", "unpacked": "transposed"}


@pytest.fixture(autouse=True)
def the_rule_afterwards():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    tfkit.use_cpu_table(None)


def table_with(*rows, **facts):
    return {"tfkit_products": 1, **product_machine(), "rows": [{**ROW, **row} for row in rows or ({},)], **facts}


def use(tmp_path, table):
    file = tmp_path / "cpu.json"
    file.write_text(table if isinstance(table, str) else json.dumps(table))
    tfkit.use_cpu_table(file)
    return small_batch.TABLE


def test_a_product_takes_the_row_of_the_nearest_weight_and_of_its_number_of_rows(tmp_path):
    late = {"rows": [5, None], "fastest": "onednn", "unpacked": "onednn"}
    large = {"outputs": 256, "inputs": 128, "fastest": "mkl", "unpacked": "mkl"}
    table = use(tmp_path, table_with({}, late, large))
    assert (table.weights, table.threads) == (2, [1])
    assert table.choice(1, 64, 32) == table.choice(4, 64, 32) == Choice(packed=True, transposed=True)
    assert table.choice(5, 64, 32) == table.choice(10**6, 64, 32) == Choice(onednn=True)
    assert table.choice(1, 90, 40) == Choice(packed=True, transposed=True)  # nearer to 64 x 32
    assert table.choice(1, 200, 90) == Choice()  # nearer to 256 x 128
    assert table.choice(5, 200, 90) is None  # 256 x 128 was measured up to 4 rows
    assert table.choice(1, 64, 129) is None  # more than twice 32, and less than half of 256 x 128 in the other dimension
    assert table.choice(1, 31, 32) is None
    torch.set_num_threads(2)
    assert table.choice(1, 64, 32) is None


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("bias", [True, False])
def test_the_chosen_kernel_computes_the_product(name, bias, tmp_path, monkeypatch):
    if name not in product_kernels(torch.ones(2, 3), None):
        pytest.skip(f"this torch has no {name}")  # one that is built without oneDNN
    plain = "mkl" if name == "packed" else name
    use(tmp_path, table_with({"rows": [1, None], "fastest": name, "unpacked": plain}))
    called = []
    multiply = products.MULTIPLY
    monkeypatch.setattr(products, "PRODUCT", None)
    monkeypatch.setattr(products, "MULTIPLY", lambda *given: (called.append("onednn"), multiply(*given))[1])
    for function in ("mm", "addmm"):
        own = getattr(torch, function)
        monkeypatch.setattr(torch, function, lambda *given, own=own: (called.append("transposed"), own(*given))[1])
    linear, copies, search = torch.nn.Linear(32, 64, bias), PackedWeight(), SearchProducts()
    x = torch.randn(3, 2, 32)
    with torch.no_grad():
        exact = torch.nn.functional.linear(x.double(), linear.weight.double(), linear.bias.double() if bias else None)
        magnitude = torch.nn.functional.linear(x.abs(), linear.weight.abs(), linear.bias.abs() if bias else None)
        for _ in range(7):
            found = small_batch.small_batch_linear(x, linear.weight, linear.bias, copies, search)
            assert bool(((found - exact).abs() <= (32 + 2) * 2.0**-24 * magnitude).all())
    expected = {"mkl": [], "transposed": 7 * ["transposed"], "onednn": 7 * ["onednn"]}
    if name == "packed":
        assert called  # after some plain products the weight is packed
        assert set(called) == {"onednn"}
        assert len(called) < 7
        assert copies.for_onednn(linear.weight, 6, search) is not None
    else:
        assert called == expected[name]


def test_decoding_with_any_table_finds_the_same_ids(tmp_path):
    model = tfkit.build("specs/transformer-tiny.yaml", seed=0).eval()
    source = torch.randint(4, 50, (4, 9), generator=torch.Generator().manual_seed(1))

    def ids():
        return tfkit.greedy(model, source=source, max_new_tokens=9).ids.tolist()

    expected = ids()
    for name in product_kernels(torch.ones(2, 3), None):
        plain = "mkl" if name == "packed" else name
        sizes = {tuple(weight.shape) for weight in model.parameters() if weight.dim() == 2}
        rows = [{"outputs": out, "inputs": into, "rows": [1, None], "fastest": name, "unpacked": plain} for out, into in sizes]
        use(tmp_path, table_with(*rows))
        assert ids() == expected


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ("{", "this is no JSON"),
        ("[]", "no table of products"),
        ({"rows": []}, "it has no `tfkit_products`"),
        (lambda: table_with(tfkit_products=2), "its form is 2, this tfkit reads 1"),
        (lambda: table_with(rows=[]), "rows"),
        (lambda: table_with({"fastest": "cublas"}), "fastest"),
        (lambda: table_with({"unpacked": "packed"}), "unpacked"),
        (lambda: table_with({"outputs": 0}), "outputs"),
        (lambda: table_with({"rows": [3, 2]}), "[3, 2] is not a first and a last number of rows"),
        (lambda: table_with({"rows": [None, 2]}), "[None, 2] is not a first and a last"),
        (lambda: table_with({"more": 1}), "more"),
        (lambda: table_with(processor="Z80"), "measured with the processor 'Z80', and here it is"),
        (lambda: table_with(capability="MMX"), "measured with the capability 'MMX', and here it is"),
        (lambda: table_with(torch="1.0"), "measured with the torch '1.0', and here it is"),
        (lambda: table_with({"threads": 3}, {"threads": 8}), "measured with threads: 3, 8; here torch computes with 1"),
    ],
)
def test_a_table_that_cannot_be_used_is_refused_and_the_one_before_stays(table, said, tmp_path):
    before = use(tmp_path, table_with())
    with pytest.raises(InputError) as caught:
        use(tmp_path, table() if callable(table) else table)
    assert said in str(caught.value)
    assert "TFK064" in str(caught.value)
    assert "tfkit bench cpu --json FILE" in str(caught.value)
    assert small_batch.TABLE is before
    tfkit.use_cpu_table(None)
    assert small_batch.products_here(())["table"] is None


def test_a_missing_file_is_reported(tmp_path):
    with pytest.raises(InputError, match=r"TFK064 .*none\.json cannot be read"):
        tfkit.use_cpu_table(tmp_path / "none.json")
