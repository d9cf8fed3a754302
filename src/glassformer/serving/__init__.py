"""HTTP server that applies trained models: predictions, completions, translations, attention maps."""
