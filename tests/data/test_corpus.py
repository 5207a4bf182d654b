"""Corpora on disk: what was written is read, from a map of the file."""

import numpy as np
import pytest

from tfkit.data import Corpus
from tfkit.data.corpus import CHUNK, CorpusWriter
from tfkit.errors import StoreError


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
