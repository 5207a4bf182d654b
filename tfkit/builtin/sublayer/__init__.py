"""Sub-layer kinds: self-attention, cross-attention, feed-forward."""
