"""Evaluation of models: metrics, confidence intervals and scores of generated text."""
