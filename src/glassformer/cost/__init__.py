"""Cost of a model and of its training: parameters, FLOPs, memory and time."""
