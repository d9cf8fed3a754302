"""Measuring models: one evaluator for training, `evaluate`, reports and the studio."""
