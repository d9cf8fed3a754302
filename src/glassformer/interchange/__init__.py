"""Conversion of models from other libraries."""
