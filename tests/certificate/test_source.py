"""The digests of the source of a part change with its code, and with nothing else."""

import sys

import pytest

from tfkit import InputError
from tfkit.certificate.part_identity import source_digests

KERNEL = '''"""The kernel."""

from . import tables
from .inner.steps import step  # a module of its own


def attend(inputs, options):
    """One call."""
    return step(inputs, f"#{options}")
'''
FILES = {
    "__init__.py": "SUMMARY = 'a kernel'\n", "kernel.py": KERNEL, "tables.py": "ROWS = [1]\n", "other.py": "UNUSED = 1\n",
    "inner/__init__.py": "", "inner/steps.py": "def step(x, y):\n    if x:\n        from acme_digest.late import z\n",
    "late.py": "z = 1\n",
}  # fmt: skip
WHOLE = {f"acme_digest.{name}" for name in ("kernel", "tables", "inner.steps", "late")}


@pytest.fixture
def package(tmp_path, monkeypatch):
    folder = tmp_path / "acme_digest"
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    from tfkit.certificate import part_identity

    part_identity._places.cache_clear()
    yield folder
    part_identity._places.cache_clear()


def digests(*modules):
    found = source_digests(modules or ["acme_digest.kernel"])
    assert not [name for name in sys.modules if name.startswith("acme_digest")], "it was imported"
    return found


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("kernel.py", "  # a module of its own", "  # another remark"), ("kernel.py", "One call.", "One call\n    of many."),
        ("kernel.py", "\n\n\ndef", "\n\n# a remark with 'quotes\ndef"), ("kernel.py", '"""The kernel."""', ""),
        ("kernel.py", "step  #", "step    #"), ("other.py", "1", "2"), ("__init__.py", "kernel", "fine kernel"),
    ],
)  # fmt: skip
def test_what_changes_no_code_changes_no_digest(package, file, old, new):
    before = digests()
    assert before.keys() == WHOLE
    text = (package / file).read_text()
    assert old in text
    (package / file).write_text(text.replace(old, new, 1))
    assert digests() == before


@pytest.mark.parametrize(
    ("file", "old", "new", "module"),
    [
        ("kernel.py", '"#{options}"', '"#{inputs}"', "kernel"), ("tables.py", "1", "2", "tables"),
        ("kernel.py", "return step", "return not step", "kernel"), ("inner/steps.py", "if x", "if y", "inner.steps"),
        ("late.py", "z = 1", "z = 2", "late"),
    ],
)  # fmt: skip
def test_a_change_of_code_is_seen_where_it_is(package, file, old, new, module):
    before = digests()
    text = (package / file).read_text()
    assert old in text
    (package / file).write_text(text.replace(old, new, 1))
    after = digests()
    assert {name for name in WHOLE if before[name] != after[name]} == {f"acme_digest.{module}"}


def test_a_compiled_module_is_covered_as_it_is_and_a_missing_one_is_said(package):
    (package / "kernel.py").write_text("from . import _C\nfrom .gone import nothing\n")
    (package / "_C.abi3.so").write_bytes(b"\x7fELF")
    found = digests()
    assert found.keys() == {f"acme_digest.{name}" for name in ("kernel", "_C", "gone")}
    assert found["acme_digest._C"]
    assert found["acme_digest.gone"] == ""
    (package / "_C.abi3.so").write_bytes(b"\x7fELF2")
    assert digests()["acme_digest._C"] != found["acme_digest._C"]


def test_source_of_another_python_is_covered_whole(package):
    (package / "kernel.py").write_text("print 'two'  # x\n")
    before = digests()
    (package / "kernel.py").write_text("print 'two'  # y\n")
    assert before != digests()
    assert before.keys() == {"acme_digest.kernel"}


HIDDEN = {
    "utf-7": (b"# coding: utf-7\nx = 1\n# kept+AAo-y = %d\n", (1, 2)),
    "unicode_escape": (b"# coding: unicode_escape\nx = 1\n# kept\\ny = %d\n", (1, 2)),
    "raw_unicode_escape": (b"# coding: raw_unicode_escape\nx = 1\n# kept\\u000ay = %d\n", (1, 2)),
    "cookie in line 2": (b"#!/usr/bin/python\n# vim: set fileencoding=utf-7 :\n# kept+AAo-y = %d\n", (1, 2)),
    "cookie after a form feed": (b"\x0c# coding: utf-7\n# kept+AAo-y = %d\n", (1, 2)),
    "latin-1": (b"# coding: latin-1\nx = '%c'\n", (0xE4, 0xF6)),
    "carriage return": (b"x = 1\n# kept\ry = %d\r\n", (1, 2)),
    "blank line of a string": (b"x = '''a\n%sb'''\n", (b"", b"\n")),
    "spaces at the end of a line of a string": (b"x = '''a%s\nb'''\n", (b"", b"  ")),
    "form feed of a string": (b"x = 'a%cb'\n", (0x0B, 0x0C)),
    "line separator of a string": (b"x = 'a\xe2\x80%cb'\n", (0xA8, 0xA9)),
    "blank line that ends a statement": (b"x = 1 \\\n%s-y\n", (b"", b"\n")),
    "comment in a string of an f-string": (b"x = f'{d['#']}'; y = %d\n", (1, 2)),
}
"""Two sources that Python reads as different code, though their comments and spaces alone differ to a simple reader."""


@pytest.mark.parametrize("name", HIDDEN)
def test_code_that_looks_like_a_comment_or_a_space_changes_the_digest(package, name):
    text, values = HIDDEN[name]
    found = []
    for value in values:
        (package / "kernel.py").write_bytes(text % value)
        found.append(digests())
    assert found[0]["acme_digest.kernel"] != found[1]["acme_digest.kernel"]


@pytest.mark.parametrize(
    "text", [b"\xef\xbb\xbf%s", b"# coding: utf-8\n%s", b"# coding: latin-1\n%s", b"# coding: ascii\n%s", b"\x0c\n%s"]
)
@pytest.mark.parametrize("ends", [b"\n", b"\r\n", b"\r"])
def test_encodings_that_read_alike_and_ends_of_lines_change_no_digest(package, text, ends):
    before = digests()
    (package / "kernel.py").write_bytes((text % KERNEL.encode()).replace(b"\n", ends))
    assert digests() == before


def test_the_file_that_python_imports_is_covered(package):
    from importlib.machinery import EXTENSION_SUFFIXES

    before = digests()
    (package / f"tables{EXTENSION_SUFFIXES[0]}").write_bytes(b"\x7fELF")
    assert digests()["acme_digest.tables"] != before["acme_digest.tables"], "Python prefers it to `tables.py`"


def test_an_f_string_of_very_many_fields_is_refused(package):
    """Python before 3.12 reads it in a time that grows with the square of its length: 14 s for 300 kB."""
    (package / "kernel.py").write_text(KERNEL + 'x = rf"' + "{1}" * 30_000 + '"\n')
    with pytest.raises(InputError, match=r"TFK098 acme_digest\.kernel has an f-string of very many fields"):
        digests()
    (package / "kernel.py").write_text(KERNEL + 'x = "' + "{1}" * 30_000 + '"\ny = f"' + "{1}" * 3000 + '"\n')
    assert digests().keys() == WHOLE
