"""The verification's table: what folds, what stays alone, what is written."""

from __future__ import annotations

import csv
import io

from rich.console import Console

from tfkit_conformance.view.verify_data import FILES, error_in_words, folded, verdict_in_words
from tfkit_conformance.view.verify_text import verify_text


def row(where, status="passed", worst=None, message="", **more):
    told = {"part": "sub-layers", "property": "norm", "rule": "R36", "backend": "", "dtype": "float32", "device": "cpu"}
    numbers = {"tensor": "", "index": [], "got": None, "want": None, "bound": None}
    return {**told, "where": where, "status": status, "worst": worst, "message": message, **numbers, **more}


def report(*rows, verdict="VERIFIED"):
    made = {"weights": "seed 0", "devices": ["cpu"], "dtypes": ["float32"], "backends": ["eager"], "versions": {"torch": "2"}}
    sizes = {"parameters": 1234, "batch": 3, "lengths": {"source": 9}, "seed": 0}
    missed = [row for row in rows if row["status"] in ("not run", "inconclusive")]
    return {"name": "small", **made, **sizes, "rows": list(rows), "verdict": verdict, "missed": missed, "finished": True}


def printed(data, width=110):
    console = Console(width=width, highlight=False)
    with console.capture() as capture:
        for part in verify_text(data):
            console.print(part)
    return capture.get()


def test_equal_layers_fold_and_keep_the_worst_error():
    rows = [row(f"encoder.{n}.ffn", worst=n / 10) for n in (0, 1, 2, 5)]
    assert [(r["where"], r["worst"], r["count"]) for r in folded(rows)] == [("encoder.0-2,5.ffn", 0.5, 4)]


def test_failures_other_places_and_other_reasons_stay_alone():
    rows = [
        row("encoder.0.ffn", worst=0.1),
        *(row(f"encoder.{n}.ffn", "failed", message="a") for n in (1, 2)),
        row("decoder.0.ffn", worst=0.1),
        *(row(f"encoder.{n}.ffn", "refused", message="b") for n in (3, 4)),
        row("source"), row("target"),
    ]  # fmt: skip
    assert [r["where"] for r in folded(rows)] == [
        "encoder.0.ffn", "encoder.1.ffn", "encoder.2.ffn", "decoder.0.ffn", "encoder.3-4.ffn", "source", "target",
    ]  # fmt: skip


def test_errors_in_words():
    assert error_in_words(row("x", worst=0.123)) == "0.12"
    assert error_in_words(row("x")) == "exact"
    assert error_in_words(row("x", property="gradient flow")) == "holds", "it compares no bits"
    assert error_in_words(row("x", "refused", 0.1)) == ""


def test_every_verdict_has_a_sentence():
    passed, failed = row("x", worst=0.5), row("y", "failed", message="wrong")
    absent = row("z", "not run", message="there is no CUDA device here", device="cuda")
    assert "VERIFIED: small passed all 1 checks" in verdict_in_words(report(passed))
    assert "0.50 of its bound" in verdict_in_words(report(passed))
    assert "FAILED: 1 of 2 checks of small failed" in verdict_in_words(report(passed, failed, verdict="FAILED"))
    told = verdict_in_words(report(passed, absent, verdict="INCOMPLETE"))
    assert "INCOMPLETE: nothing failed in 1 checks of small, but float32 cuda: there is no CUDA device here." in told
    told = verdict_in_words({**report(passed, verdict="INCOMPLETE"), "finished": False})
    assert told == "INCOMPLETE: nothing failed in 1 checks of small, but the run has not finished."


def test_text_shows_failures_in_full_and_hides_letters_that_move_the_cursor():
    bad = row("encoder.0.ffn", "failed", message="its output[0, 1] is 2, not 1\x1b[2J; 1e-07 is allowed")
    out = " ".join(printed(report(bad, row("source", worst=0.25), verdict="FAILED")).split())
    assert "FAILED norm, encoder.0.ffn (float32 cpu): its output[0, 1] is 2, not 1\\x1b[2J; 1e-07 is allowed" in out
    assert "0.25 holds" in out


def test_the_whole_model_has_a_column_for_each_backend_and_dtype():
    rows = [
        row("small", part="whole model", property="repeat", backend=b, dtype=d)
        for b in ("eager", "sdpa")
        for d in ("float32", "float64")
    ]
    rows.append(row("small", "not applicable", message="no padding", part="whole model", property="padding", backend="eager"))
    out = printed(report(*rows))
    assert out.count("exact") == 4
    assert "does not apply: no padding" in out


def test_files_hold_every_row_and_keep_cells_apart():
    data = report(row("a|b", "refused", message="no | here"), row("encoder.0.ffn", worst=0.5), row("encoder.1.ffn", worst=0.25))
    markdown = FILES[".md"](data)
    assert "| a\\|b |" in markdown
    assert "encoder.0-1.ffn" in markdown
    assert len(FILES[".csv"](data).splitlines()) == 4
    assert '"verdict": "VERIFIED"' in FILES[".json"](data)


def test_text_in_a_markdown_file_is_neither_a_link_nor_html():
    data = {**report(row("<b>x</b>", "refused", message="[a](javascript:alert)")), "name": "<script>alert(1)</script>"}
    markdown = FILES[".md"](data)
    assert markdown.startswith("# \\<script>alert(1)\\</script>: ")
    assert "| \\<b>x\\</b> |" in markdown
    assert "\\[a](javascript:alert)" in markdown


def test_no_cell_of_a_csv_file_is_a_formula_of_a_spreadsheet():
    rows = [row(text, worst=-1.5, message=text) for text in ("=1+1", "+1", "-1", "@SUM(A1)")]
    rows.append(row("\r=1", worst=-1.5, message="\t=1"))
    table = list(csv.DictReader(io.StringIO(FILES[".csv"]({**report(*rows), "name": "=cmd()"}), newline="")))
    assert [line["where"] for line in table] == [*(f"'{each['where']}" for each in rows[:-1]), r"\r=1"]
    assert {line["model"] for line in table} == {"'=cmd()"}
    assert {line["worst"] for line in table} == {"-1.5"}, "a number is none"
