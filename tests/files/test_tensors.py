"""The header of a safetensors file: what the library writes is read, anything else is refused within bounds."""

import json
import os

import pytest
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save, save_file

from tfkit import StoreError
from tfkit.files import check_header, read_header, write_tensors

TENSORS = {
    "weight": torch.ones(2, 3), "half": torch.ones(2, dtype=torch.bfloat16), "empty": torch.ones(0, 7),
    "scalar": torch.tensor(1), "mask": torch.tensor([True, False]), "é\n": torch.zeros(3, dtype=torch.float64),
}  # fmt: skip
FACTS = {
    "weight": ("float32", (2, 3)), "half": ("bfloat16", (2,)), "empty": ("float32", (0, 7)), "scalar": ("int64", ()),
    "mask": ("bool", (2,)), "é\n": ("float64", (3,)),
}  # fmt: skip


def file_of(header: object, body: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + body


def test_files_of_the_library_are_read(tmp_path):
    save_file(TENSORS, tmp_path / "x", {"format": "pt"})
    assert read_header(tmp_path / "x") == FACTS
    check_header(tmp_path / "x", FACTS, "the test")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "0 bytes"),
        (b"12345678", "its header should have"),
        ((1 << 62).to_bytes(8, "little") + b"{}", "should have 4,611,686,018,427,387,904 bytes, the file has 10"),
        (file_of([]), "not an object"),
        (file_of(b"{"), "Expecting property name"),
        (file_of(b"\xff\xff"), "utf-8"),
        (file_of(b"[" * 50_000), "nested more than 4 deep"),
        (file_of({"a": 1}), "its header: a: "),
        (file_of({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4], "more": 1}}), "a.more"),
        (file_of({"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}}), "a.shape.0"),
        (file_of({"a": {"dtype": "F99", "shape": [1], "data_offsets": [0, 4]}}, b"1234"), "unknown dtype 'F99'"),
        (file_of({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 8]}}, b"12345678"), "needs 4 bytes from byte 0"),
        (file_of({"a": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}}, b"12345678"), "but has bytes 4 to 8"),
        (file_of({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}, b"12345678"), "4 bytes, but the file holds 8"),
        (file_of({"a": {"dtype": "F32", "shape": [1 << 62] * 60, "data_offsets": [0, 4]}}, b"1234"), "but has bytes 0 to 4"),
        (file_of({"__metadata__": {"a": 1}}), "its header: a"),
        (file_of(b'{"a": {}, "a": {}}'), "repeated"),
    ],
)
def test_anything_else_is_refused_with_the_reason(tmp_path, content, reason):
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(StoreError, match=rf"TFK082.*{reason}"):
        read_header(tmp_path / "x")


def test_a_header_has_no_more_than_the_tensors_that_are_needed(tmp_path):
    """300,000 empty tensors where one is needed: the size of the header is enough to refuse them."""
    many = ",".join(f'"t{number}":{{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}' for number in range(300_000))
    (tmp_path / "x").write_bytes(file_of(f"{{{many}}}".encode()))
    with pytest.raises(StoreError, match=r"its header has [\d,]+ bytes, and at most 65,8\d\d are expected"):
        check_header(tmp_path / "x", {"weight": FACTS["weight"]}, "the test")


def test_a_sparse_file_is_refused_by_its_header(tmp_path):
    (tmp_path / "x").write_bytes(save({"a": torch.ones(3)}))
    os.truncate(tmp_path / "x", 8 << 40)
    with pytest.raises(StoreError, match=r"its tensors have 12 bytes, but the file holds 8,796,\d"):
        read_header(tmp_path / "x")


@pytest.mark.parametrize("kind", ["link", "named pipe", "directory"])
def test_special_files_are_refused(tmp_path, kind):
    save_file({"a": torch.ones(3)}, tmp_path / "real")
    if kind == "link":
        (tmp_path / "x").symlink_to("real")
    elif kind == "named pipe":
        os.mkfifo(tmp_path / "x")
    else:
        (tmp_path / "x").mkdir()
    with pytest.raises(StoreError, match=rf"TFK082.*it is a {kind}"):
        read_header(tmp_path / "x")


def test_differences_are_named_and_counted(tmp_path):
    save_file({"a": torch.ones(3), "b": torch.ones(3)}, tmp_path / "x")
    wanted = {"a": ("float64", (3,)), "c": ("float32", (2,)), "d": ("float32", ()), "e": ("float32", ())}
    with pytest.raises(StoreError) as error:
        check_header(tmp_path / "x", wanted, "the spec")
    assert [diagnostic.message.partition(": ")[2] for diagnostic in error.value.diagnostics] == [
        "`a` is (3,) float32, the spec needs (3,) float64",
        "`b` is (3,) float32, the spec needs none",
        "`c` is missing, the spec needs (2,) float32",
        "2 more tensors are not those that the spec needs",
    ]


@pytest.mark.parametrize("flip", [1, 2, 32, 255])
def test_a_header_with_a_flipped_byte_is_refused_or_read_as_by_safetensors(tmp_path, flip):
    whole = save({"weight": torch.ones(2, 3), "mask": torch.ones(4, dtype=torch.bool)})
    path = tmp_path / "x"
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ flip]) + whole[place + 1 :])
        try:
            found = read_header(path)
        except StoreError:
            continue
        try:
            with safe_open(path, "pt") as file:
                assert {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()} == {  # noqa: SIM118
                    name: shape for name, (_, shape) in found.items()
                }
        except SafetensorError:
            continue  # the library is stricter still


def test_what_fails_while_a_file_is_written_is_raised(tmp_path):
    """Reading runs in another thread."""
    shapes = dict.fromkeys("abc", ("float32", (4,)))

    def read(name):
        if name == "b":
            raise BrokenPipeError(name)
        return bytes(16)

    with pytest.raises(BrokenPipeError):
        write_tensors(tmp_path / "broken", shapes, read)
    with pytest.raises(ValueError, match="`a` has 12 bytes, and its shape needs 16"):
        write_tensors(tmp_path / "short", shapes, lambda name: bytes(12))
