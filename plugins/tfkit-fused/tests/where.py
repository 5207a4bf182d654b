"""Where the kernels can run: in the interpreter on the CPU, on a CUDA device, or nowhere."""

import pytest
import tfkit_fused
import torch

DEVICE = "cpu" if tfkit_fused.INTERPRETED else "cuda" if torch.cuda.is_available() else ""
runs = pytest.mark.skipif(not DEVICE, reason="not run: no CUDA device, and TRITON_INTERPRET=1 is not set")
"""Marks a test that launches kernels."""
