"""The Triton kernels: `tile` says what one tile of scores is, the others sweep over tiles."""
