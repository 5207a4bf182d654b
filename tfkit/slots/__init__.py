"""What can be plugged: one file per slot, with its entry type. Nothing here imports torch."""
