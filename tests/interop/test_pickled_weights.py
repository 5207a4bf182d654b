"""Weights of torch.save: what a file may take is known before torch reads it."""

from __future__ import annotations

import pickle
import struct
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tfkit import TfkitError
from tfkit.interop.huggingface_directory import HuggingFaceDirectory
from tfkit.interop.pickled_weights import LARGEST_LIST, load_pickled

WEIGHTS = {"a": torch.arange(8.0), "b": torch.ones(3, 2, dtype=torch.bfloat16)}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text("{}")
    torch.save(WEIGHTS, tmp_path / "pytorch_model.bin")
    return tmp_path


def error_of(directory: Path) -> str:
    with pytest.raises(TfkitError) as error:
        _ = HuggingFaceDirectory(directory, allow_pickle=True).places
    return str(error.value)


def packed_again(path: Path, change: Callable[[zipfile.ZipFile, dict[str, bytes]], None]) -> None:
    """A file of torch.save with other members: `change` gets the archive that is written, and the members of the file."""
    with zipfile.ZipFile(path) as archive:
        members = {each.filename: archive.read(each) for each in archive.infolist()}
    with zipfile.ZipFile(path, "w") as archive:
        change(archive, members)


def packed(archive: zipfile.ZipFile, members: dict[str, bytes]) -> None:
    for name, data in members.items():
        archive.writestr(name, data, zipfile.ZIP_DEFLATED)


def with_members(
    *names: str, data: bytes = b"", kind: int = zipfile.ZIP_STORED, extra: bytes = b"", comment: bytes = b""
) -> Any:
    def change(archive: zipfile.ZipFile, members: dict[str, bytes]) -> None:
        for name, content in members.items():
            archive.writestr(name, content)
        for name in names:
            member = zipfile.ZipInfo(name)
            member.compress_type, member.extra = kind, extra
            archive.writestr(member, data)
        archive.comment = comment

    return change


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (packed, "its members are compressed"),
        (with_members("x/data/bomb", data=bytes(50 << 20), kind=zipfile.ZIP_DEFLATED), "its members are compressed"),
        (with_members(comment=b"PK"), "it has a comment"),
        (with_members(*(f"{number}{'x' * 60_000}" for number in range(300))), "its list of members has"),
        (with_members("x", extra=b"\1\x10\0\0" * 16_000), "a member has extra fields of 64,000 bytes, and at most 64"),
        (with_members("pytorch_model/DATA.PKL", data=bytes(2 << 20)), "pytorch_model/DATA.PKL has 2,097,152 bytes"),
    ],
)
def test_archives_that_take_more_than_their_size_are_refused(change, words, directory):
    packed_again(directory / "pytorch_model.bin", change)
    assert f"TFK143 {directory}/pytorch_model.bin is no file of torch.save that can be read: {words}" in error_of(directory)


def test_members_that_claim_more_than_the_file_are_refused(directory):
    path = directory / "pytorch_model.bin"
    data = path.read_bytes()
    sizes = struct.pack("<II", 32, 32)
    at = data.rindex(sizes)
    path.write_bytes(data[:at] + struct.pack("<II", 32, 1 << 30) + data[at + 8 :])
    assert "its members have 1,073," in error_of(directory)


def test_a_list_that_two_readers_look_for_at_two_places_is_refused(directory):
    """zipfile takes the list before its end, torch's reader the one at the place that the end says."""
    path = directory / "pytorch_model.bin"
    data = path.read_bytes()
    start = data.index(b"PK\1\2")
    path.write_bytes(data[:start] + bytes(100) + data[start:])
    assert "its list of members is not where its end says" in error_of(directory)
    path.write_bytes(data[:-30])
    assert "it has a comment or was cut off" in error_of(directory)


def legacy(path: Path, weights: Any = WEIGHTS) -> bytes:
    torch.save(weights, path, _use_new_zipfile_serialization=False)
    return path.read_bytes()


def test_a_file_of_torch_before_1_6_is_read_and_its_pickles_are_bounded(directory):
    path = directory / "pytorch_model.bin"
    data = legacy(path)
    loaded = load_pickled(path)
    assert all(torch.equal(loaded[name], tensor) for name, tensor in WEIGHTS.items())
    at = data.index(b"}q\x00(X\1\0\0\0a")  # the pickle of the tensors, behind its protocol
    path.write_bytes(data[:at] + b"X" + struct.pack("<I", 1 << 30) + data[at:])
    with path.open("r+b") as file:
        file.truncate(2 << 30)
    refused = f"its pickles have more than {LARGEST_LIST:,} bytes"
    assert refused in error_of(directory)
    path.write_bytes(data[:at] + b"]" * (2 << 20))
    assert refused in error_of(directory)
    path.write_bytes(data[:at] + b"c" + b"x" * (2 << 20))
    assert refused in error_of(directory)


def test_storages_have_no_more_bytes_than_the_file_and_none_keeps_what_the_memory_held(directory):
    path = directory / "pytorch_model.bin"
    data = legacy(path)
    path.write_bytes(data.replace(b"K\x08N", b"J" + struct.pack("<i", 1 << 30) + b"N"))
    assert "its tensors have more bytes than the" in error_of(directory)
    before, listed = data.split(b"\x80\x02]q\x00", 1)  # the pickle that lists the storages
    path.write_bytes(before + pickle.dumps([], 2) + listed[listed.index(b".") + 1 :])
    assert not any(tensor.any() for tensor in load_pickled(path).values())


def test_a_tape_archive_is_refused(directory):
    path = directory / "pytorch_model.bin"
    import tarfile

    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as tape:
        member = tarfile.TarInfo("storages")
        member.pax_headers = {"comment": "x" * (4 << 20)}
        tape.addfile(member)
    assert "TFK143" in error_of(directory)


def test_a_view_that_repeats_the_numbers_of_the_file_is_refused(directory):
    torch.save({"a": torch.ones(1).expand(1 << 30)}, directory / "pytorch_model.bin")
    assert "`a` of the pickled weights is a view that repeats the numbers of the file" in error_of(directory)


def test_a_pickle_of_another_protocol_gives_no_warning_of_torch(tmp_path):
    path = tmp_path / "weights.bin"
    torch.save({"a": torch.ones(2)}, path, pickle_protocol=4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(pickle.UnpicklingError, match="Unsupported operand"):  # torch warns before it refuses
            load_pickled(path)
