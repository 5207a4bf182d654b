"""Listings as nvdisasm prints them, of a few instructions each."""

from tfkit_conformance.machine_code.listing import Kernel, kernels_of

HEAD = """\t.headerflags\t@"EF_CUDA_SM90 EF_CUDA_VIRTUAL_SM(EF_CUDA_SM90)"

//--------------------- .text.k --------------------------
\t.section\t.text.k,"ax",@progbits
\t.sectionflags\t@"SHF_BARRIERS=1"
        .global         k
        .type           k,@function
        .other          k,@"STO_CUDA_ENTRY STV_DEFAULT"
k:
.text.k:
\t//## File "/home/kernels/k.py", line 7
"""


def listing(*lines: str) -> str:
    """Lines that end with a colon are labels; the others are instructions, 16 bytes apart."""
    text, address = [], 0
    for line in lines:
        if line.endswith(":"):
            text.append(line)
            continue
        text.append(f"        /*{address:04x}*/                   {line} ;")
        address += 16
    return HEAD + "\n".join(text) + "\n"


def kernel(*lines: str) -> Kernel:
    [found] = kernels_of(listing(*lines))
    return found
