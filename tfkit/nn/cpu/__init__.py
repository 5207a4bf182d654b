"""CPU kernels and their tuning: linear layers, prepacked weights, oneDNN, dropout, the allocator."""
