"""Grammar of a few hundred words that generates English sentences with their French translations.

`sentences` draws a derivation (`tree`) at random; `english` and `french` spell it. English determines French:
no English sentence has two translations.
"""

from glassformer.datasets.grammar.sentences import translation_pairs

__all__ = ["translation_pairs"]
