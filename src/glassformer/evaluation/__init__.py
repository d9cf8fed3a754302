"""Evaluation: one path for training, `evaluate`, reports and the studio; metrics and their intervals."""
