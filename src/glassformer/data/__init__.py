"""Data: file formats, `data check`, splits, tokenizers, token store, batching, and public data sets."""
