"""Glassformer: train Transformers on your own sequences, and see through them."""

__version__ = "0.1.0"
