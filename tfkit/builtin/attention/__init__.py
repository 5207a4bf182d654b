"""The built-in attention backends: `eager` states the equation, `sdpa` and `flex` hand it to torch's kernels."""
