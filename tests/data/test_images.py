"""Images from idx files and folders: what is read, and every way in which a file can be wrong."""

from __future__ import annotations

import gzip
import io
import math
import os
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from image_files import bars, idx, write_folder, write_idx, write_recipe
from tfkit import InputError, load_recipe
from tfkit.data import Corpus, prepare_images, read_image
from tfkit.data.image_files import idx_images, idx_labels
from tfkit.data.image_tasks import Normalisation, moved
from tfkit.plugin.model_parts import ImageRule

RULE = ImageRule(8, 1, 4, False)


def prepared(tmp_path: Path, *overrides: str, rule: ImageRule = RULE):
    recipe = load_recipe(write_recipe(tmp_path), overrides)
    return prepare_images(recipe, tmp_path / "data", rule)


@pytest.mark.parametrize("packed", [True, False])
def test_idx_files_are_read(tmp_path: Path, packed: bool) -> None:
    images, labels = write_idx(tmp_path, 7, packed)
    pixels, classes = bars(7)
    assert [np.frombuffer(each, np.uint8).reshape(8, 8).tolist() for each in idx_images(str(images))] == pixels.tolist()
    assert idx_labels(str(labels)) == [str(label) for label in classes]


def test_a_file_that_is_no_idx_file_is_not_read_whole(tmp_path: Path) -> None:
    images, labels = write_idx(tmp_path)
    (tmp_path / "sparse").touch()
    os.truncate(tmp_path / "sparse", 1 << 40)
    sparse = [f"data.validation_{name}={tmp_path / 'sparse'}" for name in ("images", "labels")]
    with pytest.raises(InputError, match="sparse cannot be read: its values have type 0x00"):
        prepared(tmp_path, f"data.images={images}", f"data.labels={labels}", *sparse)


def test_a_folder_and_idx_files_give_the_same_corpora(tmp_path: Path) -> None:
    """The held-out images are chosen by seed, and every image is in one of the two."""
    images, labels = write_idx(tmp_path)
    by_idx = prepared(tmp_path, f"data.images={images}", f"data.labels={labels}")
    assert by_idx.labels == ("0", "1")
    assert (len(by_idx.train), len(by_idx.validation)) == (80, 20)
    pixels, classes = bars(100)
    known = {image.tobytes(): label for image, label in zip(pixels, classes, strict=True)}
    found = {}
    for corpus in (by_idx.train, by_idx.validation):
        for number, row in enumerate(corpus.rows("target", range(len(corpus)))):
            found[row.tobytes()] = int(corpus.numbers["label"][number])
    assert found == known
    other = prepared(tmp_path, f"data.images={write_folder(tmp_path / 'png')}")
    assert other.labels == ("lying", "standing")
    rows = {row.tobytes() for row in other.train.rows("target", range(80))}
    assert len(rows) == 80
    assert rows <= known.keys()


def test_a_corpus_of_bytes_counts_images(tmp_path: Path) -> None:
    images, labels = write_idx(tmp_path)
    prepared(tmp_path, f"data.images={images}", f"data.labels={labels}")
    corpus = Corpus(tmp_path / "data" / "train.arrow")
    assert corpus.lengths["target"].tolist() == [1] * 80
    assert corpus.rows("target", [3])[0].dtype == np.uint8


def test_colour_images_have_their_channels_first(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (8, 8, 3), np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    assert read_image(str(tmp_path / "a.png"), ImageRule(8, 3, 4, False)).tolist() == pixels.transpose(2, 0, 1).tolist()


def png(width: int, height: int) -> bytes:
    """A PNG whose header says a size, and that holds next to nothing."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"\0" * 20)) + chunk(b"IEND", b"")


GREY = np.zeros((8, 8), np.uint8)


def with_chunks(count: int) -> bytes:
    """A PNG of the right size with empty chunks of text, 12 bytes each, which the decoder reads one by one."""
    target = io.BytesIO()
    Image.fromarray(GREY).save(target, format="PNG")
    data = target.getvalue()
    return data[:33] + (b"\0\0\0\0tEXt" + zlib.crc32(b"tEXt").to_bytes(4, "big")) * count + data[33:]


@pytest.mark.parametrize(
    ("make", "code", "words"),
    [
        (lambda path: path.write_bytes(b"no image"), "TFK122", "neither a PNG nor a JPEG"),
        (lambda path: path.write_bytes(b""), "TFK122", "neither a PNG nor a JPEG"),
        (lambda path: path.write_bytes(png(8, 8)), "TFK122", "cannot be read"),
        (lambda path: path.write_bytes(png(60000, 60000)), "TFK122", "DecompressionBomb"),
        (lambda path: path.write_bytes(png(10000, 10000)), "TFK122", "DecompressionBomb"),
        (lambda path: path.write_bytes(png(5000, 5000)), "TFK123", "5000 x 5000 pixels, the model takes 8 x 8"),
        (lambda path: Image.fromarray(GREY).resize((8, 9)).save(path), "TFK123", "9 x 8 pixels"),
        (lambda path: Image.fromarray(GREY).convert("RGB").save(path), "TFK123", "is 8-bit RGB, the model takes 8-bit grey"),
        (lambda path: Image.fromarray(GREY).convert("RGBA").save(path), "TFK123", "RGB with transparency"),
        (lambda path: Image.fromarray(GREY).convert("P").save(path), "TFK123", "a palette"),
        (lambda path: Image.fromarray(GREY).convert("I;16").save(path), "TFK123", "16-bit grey"),
        (lambda path: Image.fromarray(GREY).convert("1").save(path), "TFK123", "black and white"),
        (lambda path: Image.fromarray(GREY).save(path, format="GIF"), "TFK122", "neither a PNG nor a JPEG"),
        (lambda path: path.write_bytes(with_chunks(400_000)), "TFK122", "bytes, and at most 4,194,816 are read"),
        (lambda path: os.symlink("/dev/zero", path), "TFK122", "no link is followed"),
        (lambda path: os.mkfifo(path), "TFK122", "a named pipe"),
        (lambda path: path.mkdir(), "TFK122", "a directory"),
    ],
)
def test_a_wrong_image_is_named(tmp_path: Path, make, code: str, words: str) -> None:
    folder = write_folder(tmp_path / "png", 10)
    make(folder / "lying" / "zz.png")
    with pytest.raises(InputError) as error:
        prepared(tmp_path, f"data.images={folder}", "data.held_out=2")
    (diagnostic,) = error.value.diagnostics
    assert diagnostic.code == code
    assert f"{folder}/lying/zz.png" in diagnostic.message
    assert words in diagnostic.message


def test_a_cut_image_is_named(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "png", 10)
    path = folder / "lying" / "zz.jpg"
    Image.fromarray(bars(1)[0][0]).save(path)
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(InputError, match=r"zz\.jpg cannot be read"):
        prepared(tmp_path, f"data.images={folder}", "data.held_out=2")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda folder: (folder / "note.png").write_bytes(b""), "note.png cannot be read: a sub-folder for each label"),
        (
            lambda folder: (folder / "lying" / "note.txt").write_bytes(b""),
            "note.txt cannot be read: it is neither PNG nor JPEG",
        ),
        (lambda folder: os.symlink(folder / "lying", folder / "other"), "other cannot be read: a sub-folder"),
    ],
)
def test_what_does_not_belong_in_a_folder_is_named(tmp_path: Path, change, words: str) -> None:
    folder = write_folder(tmp_path / "png", 10)
    (folder / ".DS_Store").write_bytes(b"")
    change(folder)
    with pytest.raises(InputError, match=words):
        prepared(tmp_path, f"data.images={folder}", "data.held_out=2")


def cut(data: bytes) -> bytes:
    return data[:-3]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (cut, "it ends after 6,397 of 6,400 bytes"),
        (lambda data: data + b"0", "goes on after the 6,400 bytes"),
        (lambda data: b"", "it is no idx file"),
        (lambda data: b"\x1f\x8b" + data, "it is no idx file"),
        (lambda data: data[:2] + b"\x0d" + data[3:], "type 0x0d"),
        (lambda data: data[:3] + b"\x01" + data[4:], "an idx file of labels"),
        (lambda data: data[:3] + b"\x04" + data[4:], "4 dimensions"),
        (lambda data: data[:4] + b"\0\0\0\0" + data[8:], "header says 0 x 8 x 8"),
        (lambda data: data[:8] + b"\xff\xff\xff\xff" + data[12:], "4,294,967,295"),
    ],
)
def test_a_wrong_idx_file_is_named(tmp_path: Path, change, words: str) -> None:
    images, labels = write_idx(tmp_path, packed=False)
    images.write_bytes(change(images.read_bytes()))
    with pytest.raises(InputError) as error:
        prepared(tmp_path, f"data.images={images}", f"data.labels={labels}")
    assert error.value.diagnostics[0].code == "TFK122"
    assert words in str(error.value)
    assert str(images) in str(error.value)


def test_a_header_that_says_more_than_a_file_can_hold_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    for path, head in (("a.idx", b""), ("a.gz", gzip.compress(b"\0\0\x08\x01\x7f\xff\xff\xff" + bytes(20 << 20)))):
        (tmp_path / path).write_bytes(head or b"\0\0\x08\x01\x7f\xff\xff\xff")
        with pytest.raises(
            InputError, match=r"TFK122 .*its header says 2,147,483,647 bytes, and a file of this size holds at most"
        ):
            idx_labels(str(tmp_path / path))


def test_a_packed_file_that_is_cut_or_no_gzip_is_named(tmp_path: Path) -> None:
    images, labels = write_idx(tmp_path)
    whole = images.read_bytes()
    for data in (whole[:-20], b"plain", gzip.compress(idx(bars(100)[0]) * 3)):
        images.write_bytes(data)
        with pytest.raises(InputError, match="cannot be read"):
            prepared(tmp_path, f"data.images={images}", f"data.labels={labels}")


@pytest.mark.parametrize(
    ("overrides", "code", "words"),
    [
        ([], "TFK108", "names no file for `data.labels`"),
        (["data.labels={other_labels}"], "TFK102", "has 100 images"),
        (["data.labels={images}"], "TFK122", "are the two files exchanged?"),
        (["data.labels={labels}", "data.mean=[0.1,0.2]"], "TFK108", "2 numbers, the images have 1 channel"),
        (["data.labels={labels}", "data.held_out=100"], "TFK108", "100 of 100 rows"),
        (
            ["data.labels={labels}", "data.validation_images={images}", "data.validation_labels={labels}"],
            "TFK108",
            "held out only",
        ),
    ],
)
def test_wrong_settings_are_located(tmp_path: Path, overrides: list[str], code: str, words: str) -> None:
    images, labels = write_idx(tmp_path)
    _, other = write_idx(tmp_path, 90, prefix="other_")
    names = {"images": images, "labels": labels, "other_labels": other}
    with pytest.raises(InputError) as error:
        prepared(tmp_path, f"data.images={images}", *(each.format(**names) for each in overrides))
    assert error.value.diagnostics[0].code == code
    assert words in str(error.value)


def test_images_that_do_not_fit_the_model_are_named_before_they_are_read(tmp_path: Path) -> None:
    images, labels = write_idx(tmp_path)
    given = (f"data.images={images}", f"data.labels={labels}")
    with pytest.raises(InputError, match="8 x 8 pixels, the model takes 28 x 28"):
        prepared(tmp_path, *given, rule=ImageRule(28, 1, 7, False))
    with pytest.raises(InputError, match="8-bit grey, the model takes 8-bit RGB"):
        prepared(tmp_path, *given, rule=ImageRule(8, 3, 4, False))


def test_a_label_that_is_not_in_training_is_named(tmp_path: Path) -> None:
    train, other = write_folder(tmp_path / "a", 10), write_folder(tmp_path / "b", 10, ("standing", "askew"))
    with pytest.raises(InputError) as error:
        prepared(tmp_path, f"data.images={train}", f"data.validation_images={other}", "data.held_out=null")
    assert error.value.diagnostics[0].code == "TFK115"
    assert "the label `askew`" in str(error.value)
    assert f"{other}/askew/" in str(error.value)


def test_one_number_in_two_scripts_is_refused(tmp_path: Path) -> None:
    images = write_folder(tmp_path / "a", 10, ("3", "\uff13"))
    with pytest.raises(InputError, match="TFK115 data: classes 0 and 1 have the same label"):
        prepared(tmp_path, f"data.images={images}", "data.held_out=2")


def test_moving_is_rotation_and_shift_by_bilinear_interpolation() -> None:
    """Against the inverse map of every pixel, one by one."""
    images = torch.rand(3, 2, 8, 8, generator=torch.Generator().manual_seed(0))
    angles, shifts = torch.tensor([0.0, 0.5, -2.0]), torch.tensor([[1.5, -2.0], [0.0, 0.25], [3.0, 1.0]])
    got = moved(images, angles, shifts)
    for b in range(3):
        cos, sin = math.cos(float(angles[b])), math.sin(float(angles[b]))
        for row in range(8):
            for column in range(8):
                x, y = column - 3.5 - float(shifts[b, 0]), row - 3.5 - float(shifts[b, 1])
                there_x, there_y = cos * x - sin * y + 3.5, sin * x + cos * y + 3.5
                left, top = math.floor(there_x), math.floor(there_y)
                for channel in range(2):
                    want = 0.0
                    for at_y, share_y in ((top, 1 - (there_y - top)), (top + 1, there_y - top)):
                        for at_x, share_x in ((left, 1 - (there_x - left)), (left + 1, there_x - left)):
                            if 0 <= at_y < 8 and 0 <= at_x < 8:
                                want += share_y * share_x * float(images[b, channel, at_y, at_x])
                    assert float(got[b, channel, row, column]) == pytest.approx(want, abs=2e-6)


def test_a_quarter_turn_goes_counterclockwise() -> None:
    image = torch.zeros(1, 1, 3, 3)
    image[0, 0, 1, 2] = 1.0  # right
    turned = moved(image, torch.tensor([math.pi / 2]), torch.zeros(1, 2))
    assert turned[0, 0, 0, 1] == pytest.approx(1.0)  # up


def test_normalisation_is_by_channel() -> None:
    images = torch.rand(2, 3, 4, 4)
    got = Normalisation((0.1, 0.2, 0.3), (1.0, 2.0, 4.0))(images)
    for channel, (mean, std) in enumerate(((0.1, 1.0), (0.2, 2.0), (0.3, 4.0))):
        torch.testing.assert_close(got[:, channel], (images[:, channel] - mean) / std)
