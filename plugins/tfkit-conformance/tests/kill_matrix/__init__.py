"""The suite evaluated by itself: mutants that it must kill, correct kernels that must raise no alarm."""
