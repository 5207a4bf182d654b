"""Corpora on disk: what was written is read, from a map of the file."""

import struct

import numpy as np
import pyarrow as pa
import pytest

from tfkit import StoreError
from tfkit.data import Corpus
from tfkit.data.corpus import CHUNK, MAX_METADATA, MAX_TEXT, CorpusWriter


def written(path, rows, texts=()):
    writer = CorpusWriter(path, ("source", "target"), texts)
    for row in rows:
        writer.add(row)
    return writer.close()


@pytest.mark.slow
def test_rows_come_back_across_chunks(tmp_path):
    draw = np.random.default_rng(0)
    rows = [
        {"source": draw.integers(0, 99, draw.integers(1, 9)).tolist(), "target": [number], "said": f"row {number}"}
        for number in range(2 * CHUNK + 5)
    ]
    written(tmp_path / "c.arrow", rows, ("said",))
    corpus = Corpus(tmp_path / "c.arrow")
    assert len(corpus) == len(rows)
    assert corpus.columns == ("source", "target")
    chosen = [0, CHUNK - 1, CHUNK, 2 * CHUNK + 4, 17]
    assert [ids.tolist() for ids in corpus.rows("source", chosen)] == [rows[number]["source"] for number in chosen]
    assert [ids.tolist() for ids in corpus.rows("target", chosen)] == [[number] for number in chosen]
    assert corpus.lengths["source"].tolist() == [len(row["source"]) for row in rows]
    assert corpus.text("said", 2) == ["row 0", "row 1"]
    assert not corpus.rows("source", [3])[0].flags.writeable  # the file's own memory


def test_the_digest_differs_for_different_rows(tmp_path):
    one = written(tmp_path / "a", [{"source": [1, 2], "target": [3]}])
    assert one == written(tmp_path / "b", [{"source": [1, 2], "target": [3]}])
    assert one != written(tmp_path / "c", [{"source": [1], "target": [2, 3]}])


def test_a_file_appears_when_it_is_whole(tmp_path):
    writer = CorpusWriter(tmp_path / "c.arrow", ("target",))
    writer.add({"target": [1]})
    assert not (tmp_path / "c.arrow").exists()
    writer.close()
    assert (tmp_path / "c.arrow").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["c.arrow"]


def test_a_damaged_file_is_reported(tmp_path):
    written(tmp_path / "c.arrow", [{"source": [1], "target": [2]}])
    (tmp_path / "c.arrow").write_bytes((tmp_path / "c.arrow").read_bytes()[:-30])
    with pytest.raises(StoreError, match="TFK082"):
        Corpus(tmp_path / "c.arrow")


def forged(path, columns, **options):
    """A file of Arrow with these columns, written by the library."""
    table = pa.table(columns)
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema, **options) as writer:
        for batch in table.to_batches():
            writer.write_batch(batch)


IDS = pa.array([[1, 2], [3], [4, 5, 6]], pa.list_(pa.int32()))
FALLING = pa.ListArray.from_arrays(pa.array([0, 2, 1, 3], pa.int32()), pa.array([1, 2, 3], pa.int32()))
NESTED = pa.array([[[1]]] * 3, pa.list_(pa.list_(pa.int32())))


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"target": FALLING}, "cannot be read: .*[Oo]ffset"),
        ({"target": pa.array([[1], None], pa.list_(pa.int32()))}, "it holds nulls"),
        ({"target": pa.array([[1], [None]], pa.list_(pa.int32()))}, "it holds nulls"),
        ({"target": IDS, "label": pa.array([1, None, 2], pa.int32())}, "it holds nulls"),
        ({"target": IDS.cast(pa.large_list(pa.int64()))}, "a column has the type large_list<"),
        ({"target": pa.array(["a"] * 3).dictionary_encode()}, "the type dictionary<"),
        ({"target": NESTED}, "a column has the type list<item: list"),
        ({"target": IDS, "said": pa.array(["a", "b" * (MAX_TEXT + 1), "c"])}, "a text has 33,554,433 bytes, and"),
        ({f"c{n}": IDS for n in range(20)}, "it has 20 columns, and at most 16"),
        ({f"c{n}": IDS for n in range(3_000)}, "the metadata of a part have [0-9,]+ bytes"),
    ],
)
def test_a_forged_file_is_refused_before_a_row_is_read(tmp_path, columns, message):
    forged(tmp_path / "c.arrow", columns)
    with pytest.raises(StoreError, match=f"TFK082 .*c.arrow: .*{message}"):
        Corpus(tmp_path / "c.arrow")


def test_metadata_are_measured_before_the_library_reads_them(tmp_path, monkeypatch):
    """The library copies all of them several times, those of the schema in the footer too."""
    table = pa.table({"target": IDS}).replace_schema_metadata({"more": "x" * MAX_METADATA})
    with pa.OSFile(str(tmp_path / "c.arrow"), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)
    for name in ("open_file", "open_stream", "read_message", "read_schema"):
        monkeypatch.delattr(pa.ipc, name)
    with pytest.raises(StoreError, match=r"the metadata of a part have 65,[0-9]+ bytes, at most 65,536 are expected"):
        Corpus(tmp_path / "c.arrow")


def test_a_footer_is_the_rest_of_the_file_and_small(tmp_path):
    forged(tmp_path / "c.arrow", {"target": IDS})
    data = (tmp_path / "c.arrow").read_bytes()
    (size,) = struct.unpack("<i", data[-10:-6])
    for changed, message in (
        (b"PARQUET1" + data[8:], "it does not begin as a file of Arrow"),
        (data[:8] + b"\1" + data[9:], "no part begins at byte 8"),
        (data[:-6], "it does not end with the footer"),
        (data[:-10] + struct.pack("<i", size - 8) + data[-6:], "it does not end with the footer"),
        (data[:-10] + bytes(100_000) + struct.pack("<i", size + 100_000) + data[-6:], "its footer has 100,[0-9]+ bytes"),
    ):
        (tmp_path / "c.arrow").write_bytes(changed)
        with pytest.raises(StoreError, match=f"cannot be read: {message}"):
            Corpus(tmp_path / "c.arrow")


def test_a_length_beyond_the_file_is_refused(tmp_path):
    """Rows of such a file lie in other memory of the process, or in none: a segmentation fault."""
    numbers = pa.array(np.zeros(12_345, np.int32))
    forged(tmp_path / "c.arrow", {"target": pa.ListArray.from_arrays(pa.array([0, 5, 12_345], pa.int32()), numbers)})
    data = (tmp_path / "c.arrow").read_bytes()
    (tmp_path / "c.arrow").write_bytes(data.replace(struct.pack("<q", 12_345), struct.pack("<q", 1 << 29), 1))
    with pytest.raises(StoreError, match=r"cannot be read: .*too small"):
        Corpus(tmp_path / "c.arrow")


@pytest.mark.parametrize("codec", ["zstd", "lz4"])
def test_compressed_buffers_are_refused_before_they_are_unpacked(tmp_path, codec):
    zeros = pa.ListArray.from_arrays(pa.array([0, 10_000_000], pa.int32()), pa.array(np.zeros(10_000_000, np.int32)))
    forged(tmp_path / "c.arrow", {"target": zeros}, options=pa.ipc.IpcWriteOptions(compression=codec))
    peak = max(pa.default_memory_pool().max_memory(), pa.total_allocated_bytes())
    with pytest.raises(StoreError, match="its buffers are compressed, and tfkit writes none that are"):
        Corpus(tmp_path / "c.arrow")
    assert pa.default_memory_pool().max_memory() - peak < 1 << 20


def test_many_small_parts_are_refused(tmp_path):
    schema = pa.schema([("target", pa.list_(pa.int32()))])
    with pa.OSFile(str(tmp_path / "c.arrow"), "wb") as file, pa.ipc.new_file(file, schema) as writer:
        for _ in range(3):
            writer.write_batch(pa.record_batch([IDS], schema=schema))
    with pytest.raises(StoreError, match="a part before the last has fewer than 1,000 rows"):
        Corpus(tmp_path / "c.arrow")


def test_columns_and_ranges_are_those_of_the_training(tmp_path):
    def check(sizes, spans=False, texts=(), **columns):
        forged(tmp_path / "c.arrow", columns)
        Corpus(tmp_path / "c.arrow").check(sizes, spans, texts=texts)

    def numbers(*values):
        return pa.array(values, pa.int32())

    check({"target": 7, "label": 3}, target=IDS, label=numbers(0, 1, 2))
    said = pa.array(["a", "b", "c"])
    check({"target": 7}, texts=["said"], target=IDS, said=said)
    for present, texts in ((said, []), (said, ["other"]), (None, ["said"])):
        with pytest.raises(StoreError, match="its columns of texts are "):
            check({"target": 7}, texts=texts, target=IDS, **({} if present is None else {"said": present}))
    check({"target": 7}, True, target=IDS, start=numbers(0, 0, 1), end=numbers(1, 0, 2))
    tags = pa.array([[0, -100], [1], [0, 0, 0]], pa.list_(pa.int32()))
    check({"target": 7, "tags": 2}, target=IDS, tags=tags)
    for message, sizes, spans, columns in (
        ("`target` has numbers from 1 to 6, and 0 to 5 are expected", {"target": 6}, False, {"target": IDS}),
        ("`label` has numbers from -1 to 2", {"target": 7, "label": 3}, False, {"target": IDS, "label": numbers(0, -1, 2)}),
        ("`tags` has numbers from -100 to 1", {"target": 7, "tags": 1}, False, {"target": IDS, "tags": tags}),
        ("other lengths in `tags`", {"target": 7, "tags": 7}, False, {"target": IDS, "tags": pa.array([[0]] * 3, tags.type)}),
        ("columns of numbers are source, and target are", {"target": 7}, False, {"source": IDS}),
        ("it has no row with a token", {"target": 7}, False, {"target": pa.array([[]] * 3, IDS.type)}),
        (
            "are not two of its positions",
            {"target": 7},
            True,
            {"target": IDS, "start": numbers(0, 0, 1), "end": numbers(1, 1, 2)},
        ),
    ):
        with pytest.raises(StoreError, match=message):
            check(sizes, spans, **columns)


@pytest.mark.parametrize("size", [0, 1, 9, 10, 11, 100])
def test_a_file_of_zeros_is_refused(tmp_path, size):
    (tmp_path / "c.arrow").write_bytes(bytes(size))
    with pytest.raises(StoreError, match="cannot be read"):
        Corpus(tmp_path / "c.arrow")
