"""ptxas: a descriptor of wgmma is computed from a register that nothing wrote. Takes the ptxas to try; else Triton's."""

import subprocess
import sys
import tempfile
from pathlib import Path

import triton

TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
SCORES, SUM = (", ".join(f"%{name}{i}" for i in range(count)) for name, count in (("s", 16), ("a", 4)))
CONVERSIONS = "\n".join(f"cvt.rn.bf16x2.f32 %h{i}, %s{2 * i + 1}, %s{2 * i};" for i in range(8))
ZEROS = "\n".join(f"mov.f32 %a{i}, 0f00000000;" for i in range(4))
STORES = "\n".join(f"st.global.f32 [%d0+{4 * i}], %a{i};" for i in range(4))
WAIT = "wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;"
PTX = f"""
.version 8.0
.target sm_90a
.address_size 64
.extern .shared .align 16 .b8 memory[];
.visible .entry products(.param .u64 place)
{{
.reg .pred %p<2>; .reg .b32 %r<2>; .reg .b64 %d<5>; .reg .f32 %a<4>; .reg .f32 %s<16>; .reg .b32 %h<8>;
ld.param.u64 %d0, [place];
mov.u32 %r0, memory;
bfe.u32 %r1, %r0, 4, 14;
cvt.u64.u32 %d1, %r1;                     // the address of shared memory in a descriptor
add.s64 %d2, %d1, 4611686293305294848;    // three descriptors of it
add.s64 %d3, %d1, -9223371899415822336;
add.s64 %d4, %d1, -9223371899415822272;
setp.ne.b32 %p0, 0, 0;
setp.eq.b32 %p1, 0, 0;
{ZEROS}
wgmma.fence.sync.aligned;
wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {{{SCORES}}}, %d2, %d2, %p0, 1, 1, 1, 1;
{WAIT}
{CONVERSIONS}
wgmma.fence.sync.aligned;
wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {{{SUM}}}, {{%h0, %h1, %h2, %h3}}, %d3, %p1, 1, 1, 1;
wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {{{SUM}}}, {{%h4, %h5, %h6, %h7}}, %d4, %p1, 1, 1, 1;
{WAIT}
{STORES}
ret;
}}
"""
ptxas = sys.argv[1] if len(sys.argv) > 1 else TOOLS / "ptxas"
with tempfile.TemporaryDirectory() as place:
    ptx, cubin = Path(place) / "products.ptx", Path(place) / "products.cubin"
    ptx.write_text(PTX)
    for level in "0123":
        subprocess.run([ptxas, f"-O{level}", "-arch=sm_90a", ptx, "-o", cubin], check=True, stderr=subprocess.DEVNULL)
        said = subprocess.run([sys.executable, "-m", "tfkit", "machine-code", cubin], capture_output=True, text=True).stdout
        print(f"-O{level}:", *(line.strip() for line in said.splitlines() if "nothing wrote" in line), sep="\n  ")
