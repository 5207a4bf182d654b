"""`tfkit machine-code` on cubins that ptxas makes here, and on other files."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tfkit import InputError
from tfkit.cli import main
from tfkit_conformance.machine_code import cubin

triton = pytest.importorskip("triton", reason="not run: Triton, whose wheel has ptxas and nvdisasm, is not installed")
TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
PTX = """.version 8.0
.target sm_90
.address_size 64
.visible .entry {name}(.param .u64 place)
{{
    .reg .b32 %r<3>;
    .reg .b64 %rd<4>;
    .local .align 4 .b8 kept[64];
    ld.param.u64 %rd1, [place];
    mov.u32 %r1, %tid.x;
    mul.wide.u32 %rd2, %r1, 4;
    add.s64 %rd3, %rd1, %rd2;
    {more}
    st.global.u32 [%rd3], %r1;
    ret;
}}
"""
SPILLED = """mov.u32 %r2, %ctaid.x;
    and.b32 %r2, %r2, 60;
    cvt.u64.u32 %rd1, %r2;
    mov.u64 %rd2, kept;
    add.s64 %rd1, %rd2, %rd1;
    st.local.u32 [%rd1], %r1;
    ld.local.u32 %r1, [kept+8];"""


def compiled(path: Path, name: str = "k", more: str = "") -> Path:
    ptx = path.with_suffix(".ptx")
    ptx.write_text(PTX.format(name=name, more=more))
    subprocess.run([TOOLS / "ptxas", "-arch=sm_90", "-lineinfo", ptx, "-o", path], check=True)
    return path


@pytest.fixture(scope="module")
def cache(tmp_path_factory) -> Path:
    """A directory like Triton's cache: a kernel that is right, and one with local memory."""
    place = tmp_path_factory.mktemp("cache")
    for name, more in (("right", ""), ("spilled", SPILLED)):
        (place / f"{name}-hash").mkdir()
        compiled(place / f"{name}-hash" / f"{name}.cubin", name, more)
    return place


def test_a_kernel_without_findings(cache, capsys):
    assert main(["machine-code", str(cache / "right-hash" / "right.cubin")]) == 0
    assert "1 kernel in 1 file" in capsys.readouterr().out


def test_a_directory_is_searched_and_findings_end_with_1(cache, capsys):
    assert main(["machine-code", str(cache), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["files"], found["kernels"]) == (2, 2)
    assert {(each["kernel"], each["check"]) for each in found["findings"]} == {("spilled", "local memory")}
    assert all(each["instruction"].split()[0] in ("STL", "LDL") and each["address"] > 0 for each in found["findings"])
    assert main(["machine-code", str(cache)]) == 1
    assert "kernel spilled: local memory (2)" in capsys.readouterr().out


OTHERS = {
    "ptx": (PTX.format(name="k", more="").encode(), "it is PTX"), "empty": (b"", "it is empty"),
    "text": (b"hello\n", "it is text"),
    "program": (Path(os.path.realpath("/proc/self/exe")).read_bytes()[:4096], "an ELF file of machine"),
    "fat": (b"\x50\xed\x55\xba" + bytes(60), "fat binary"), "zip": (b"PK\x03\x04", "zip archive"),
    "short": (b"\x7fELF\x02\x01", "truncated"), "lfs": (b"version https://git-lfs.github.com/spec/v1", "Git LFS"),
}  # fmt: skip


@pytest.mark.parametrize("kind", OTHERS)
def test_what_is_no_cubin_is_named(kind, tmp_path, capsys):
    content, says = OTHERS[kind]
    file = tmp_path / f"{kind}.cubin"
    file.write_bytes(content)
    assert main(["machine-code", str(file)]) == 2
    said = capsys.readouterr().err
    assert "TFK171" in said
    assert says in said
    assert str(file) in said


def test_damaged_cubins_are_refused_or_checked(cache, tmp_path, capsys):
    whole = (cache / "spilled-hash" / "spilled.cubin").read_bytes()
    file = tmp_path / "damaged.cubin"
    for damaged in (
        whole[:200],
        whole[: len(whole) // 2],
        whole[:64] + bytes(len(whole) - 64),
        whole[:40] + b"\xff" * 24 + whole[64:],
    ):
        file.write_bytes(damaged)
        assert main(["machine-code", str(file)]) in (0, 1, 2)
        assert "Traceback" not in capsys.readouterr().err
    file.write_bytes(whole[:200])
    assert main(["machine-code", str(file)]) == 2


def test_links_are_not_followed(cache, tmp_path, capsys):
    (tmp_path / "linked.cubin").symlink_to(cache / "spilled-hash" / "spilled.cubin")
    (tmp_path / "linked").symlink_to(cache)
    assert main(["machine-code", str(tmp_path / "linked.cubin")]) == 2
    assert "link" in capsys.readouterr().err
    assert main(["machine-code", str(tmp_path)]) == 2
    assert "no *.cubin" in capsys.readouterr().err


def test_a_disassembler_that_is_missing_fails_or_hangs(cache, tmp_path, monkeypatch, capsys):
    file = cache / "right-hash" / "right.cubin"
    monkeypatch.setenv("NVDISASM", str(tmp_path / "none"))
    assert main(["machine-code", str(file)]) == 2
    said = capsys.readouterr().err
    assert "no nvdisasm was found" in said
    assert str(tmp_path / "none") in said
    stand_in = tmp_path / "nvdisasm"
    stand_in.touch(mode=0o755)
    monkeypatch.setenv("NVDISASM", str(stand_in))
    stand_in.write_text("#!/bin/sh\necho 'nvdisasm fatal: unknown architecture sm_999' >&2; exit 1\n")
    assert main(["machine-code", str(file)]) == 2
    assert "unknown architecture sm_999" in capsys.readouterr().err
    stand_in.write_text("#!/bin/sh\nexec sleep 20\n")
    assert main(["machine-code", str(file), "--timeout", "0.5"]) == 2
    assert "did not end within 0.5 seconds" in capsys.readouterr().err
    monkeypatch.setattr(cubin, "MAX_LISTING", 4096)
    stand_in.write_text("#!/bin/sh\nexec yes\n")
    assert main(["machine-code", str(file), "--timeout", "5"]) == 2


def test_a_file_that_is_too_large_is_refused(tmp_path):
    file = tmp_path / "large.cubin"
    file.write_bytes(b"\x7fELF")
    os.truncate(file, cubin.MAX_BYTES + 1)
    with pytest.raises(InputError, match=f"more than {cubin.MAX_BYTES:,} bytes"):
        cubin.read_cubin(file)


@pytest.mark.parametrize(
    ("text", "bytes_"), [('{"shared": 8192}', 8192), ('{"shared": true}', None), ("[", None), ("[]", None)]
)
def test_the_shared_memory_that_triton_declares(text, bytes_, tmp_path):
    (tmp_path / "k.json").write_text(text)
    assert cubin.shared_of(tmp_path / "k.cubin") == bytes_
    assert cubin.shared_of(tmp_path / "other.cubin") is None
