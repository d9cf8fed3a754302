"""Grammar of a few hundred words that generates English sentences with their French translations.

`sentences` draws a random derivation, whose classes are in `tree`. `english` and `french` turn the derivation
into text. Each English sentence has exactly one translation.
"""

from glassformer.datasets.grammar.sentences import translation_pairs

__all__ = ["translation_pairs"]
