"""Norm placements: how a layer wires sub-layers, norms and the residual."""
