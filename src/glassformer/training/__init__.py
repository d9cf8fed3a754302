"""Training loop and its parts: optimizers, schedules, strategies, checkpoints, events and progress."""
