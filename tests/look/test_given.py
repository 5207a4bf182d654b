"""A `.npy` file is read by its header: nothing is allocated that the file does not hold."""

import io
import struct

import numpy as np
import pytest

from tfkit import InputError
from tfkit.look.request import features_in


def npy(header, numbers=bytes(32), version=1):
    text = header.encode().ljust(118) + b"\n"
    size = struct.pack("<H" if version == 1 else "<I", len(text))
    return b"\x93NUMPY" + bytes([version, 0]) + size + text + numbers


def npz():
    file = io.BytesIO()
    np.savez(file, np.ones((2, 4), np.float32))
    return file.getvalue()


@pytest.mark.parametrize("version", [1, 2])
def test_frames_are_read_in_both_orders(tmp_path, version):
    frames = np.arange(8, dtype=np.float32).reshape(2, 4)
    for order, data in (("False", frames.tobytes()), ("True", frames.tobytes("F"))):
        header = f"{{'descr': '<f4', 'fortran_order': {order}, 'shape': (2, 4)}}"
        (tmp_path / "a.npy").write_bytes(npy(header, data, version))
        assert np.array_equal(features_in(str(tmp_path / "a.npy")), frames)
    np.save(tmp_path / "b.npy", frames.astype(">f8"))
    assert np.array_equal(features_in(str(tmp_path / "b.npy")), frames)


HEADER = "{{'descr': {}, 'fortran_order': False, 'shape': {}}}"


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (npy(HEADER.format("'<f4'", "(True, 4)"), bytes(16)), r"holds float32 \(True, 4\)"),
        (npy(HEADER.format("'<f4'", "(0, 4)"), b""), r"holds float32 \(0, 4\)"),
        (npy(HEADER.format("'<f4'", "(-1, 4)")), r"holds float32 \(-1, 4\)"),
        (npy(HEADER.format("'<f4'", "(10**9, 4)")), "cannot be read as .npy"),
        (
            npy(HEADER.format("'<f4'", "(1000000000, 1000000000)")),
            "has 32 bytes of numbers, and its header says 4,000,000,000,0",
        ),
        (npy(HEADER.format("'<f4'", "(2, 3)")), "has 32 bytes of numbers, and its header says 24"),
        (npy(HEADER.format("'|O'", "(2, 4)")), "holds object"),
        (npy(HEADER.format("'<M8'", "(2, 4)")), "holds datetime64"),
        (npy(HEADER.format("[('a', '<f4')]", "(2, 4)")), "holds "),
        (npy("{" * 100), "cannot be read as .npy"),
        (npy("x", version=3), r"cannot be read as .npy: version \(3, 0\) of the format is unknown"),
        (npz(), "cannot be read as .npy"),
        (b"", "cannot be read as .npy"),
    ],
)
def test_a_forged_header_is_refused(tmp_path, data, words):
    (tmp_path / "a.npy").write_bytes(data)
    with pytest.raises(InputError, match=f"TFK107 .*a.npy {words}"):
        features_in(str(tmp_path / "a.npy"))


@pytest.mark.parametrize("number", [np.nan, np.inf, 1e300])
def test_frames_that_are_not_finite_are_refused(tmp_path, number):
    """By one error, without a warning of NumPy or torch on the terminal."""
    np.save(tmp_path / "a.npy", np.array([[0.0, number], [1.0, 2.0]]))
    with pytest.raises(InputError, match=r"TFK107 .*a.npy holds 1 numbers that are NaN, infinite or beyond float32"):
        features_in(str(tmp_path / "a.npy"))
