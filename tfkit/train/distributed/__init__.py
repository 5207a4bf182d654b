"""Training in several processes: DDP, FSDP2, gloo, sharded checkpoints."""
