"""The loop, and what it needs: optimizers, schedules, checkpoints, events, progress."""
