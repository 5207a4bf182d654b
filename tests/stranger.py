"""A third-party plugin: its parts do everything that a part must not do to the process that checks it.

`install(directory)` writes it as an installation does, module and metadata; the directory then belongs on the path.
"""

from __future__ import annotations

from pathlib import Path

METADATA = "Metadata-Version: 2.1\nName: acme-parts\nVersion: 1.0\n"

PARTS = """
from tfkit.plugin import AttentionBackend, Capabilities, Device, Norm, Range, hookimpl


TOLD = {"devices": (Device(kind="cpu"),), "dtypes": {"float32"}, "head_dim": Range(), "query_length": Range(),
        "key_length": Range(), "value_dim_differs": True, "grouped_queries": True}


def backend(name, kernel=None, **declared):
    return AttentionBackend(name=f"acme.{name}", summary="s", attend=f"acme_kernels:{kernel or name}",
                            capabilities=Capabilities(**{**TOLD, **declared}))


@hookimpl
def tfkit_attention_backends():
    return [backend(name) for name in ("right", "aborts", "long", "stuck", "sleeps", "leaves")] + [
        backend("gpu", "right", devices=(Device(kind="cuda"),)),
        backend("nonsense", "right", head_dim=Range(minimum=8, maximum=4)),
    ]


@hookimpl
def tfkit_norms():
    return [Norm(name="acme.doubled", summary="2 x, and says it is x", build="acme_kernels:doubled",
                 parameters=lambda options, width: (), claims=lambda options: frozenset({"identity"}))]
"""

KERNELS = '''
import ctypes, os, signal, sys, time

import torch

from acme_parts import TOLD
from tfkit.plugin import AttentionOutput, Capabilities, require_capabilities

check = require_capabilities("acme", Capabilities(**TOLD))


def right(inputs, options):
    check(inputs)
    shared = inputs.query.shape[1] // inputs.key.shape[1]
    key, value = (tensor.repeat_interleave(shared, 1) for tensor in (inputs.key, inputs.value))
    return AttentionOutput(torch.softmax(inputs.scale * inputs.query @ key.mT, -1) @ value)


def aborts(inputs, options):
    check(inputs)
    print("noise of a part", flush=True)
    os.write(1, b'{"answer": {"exit_code": 0}}' + bytes([10]))
    os.abort()


def long(inputs, options):
    return (aborts if inputs.key.shape[2] > 8 else right)(inputs, options)


def stuck(inputs, options):
    """In C, and deaf to every signal that can be refused."""
    check(inputs)
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    ctypes.PyDLL(None).sleep(1000)


def sleeps(inputs, options):
    check(inputs)
    while True:
        time.sleep(0.01)


def leaves(inputs, options):
    check(inputs)
    sys.exit(3)


class Doubled(torch.nn.Module):
    def forward(self, x):
        return 2 * x


def doubled(options, width):
    return Doubled()
'''


def install(directory: Path, parts: str = PARTS, kernels: str = KERNELS) -> Path:
    """Write the plugin `acme` into a directory."""
    info = directory / "acme_parts-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(METADATA)
    (info / "entry_points.txt").write_text("[tfkit]\nacme = acme_parts\n")
    (directory / "acme_parts.py").write_text(parts)
    (directory / "acme_kernels.py").write_text(kernels)
    return directory
