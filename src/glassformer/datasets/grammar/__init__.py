"""English sentences and their French, from a grammar of a few hundred words: an endless parallel corpus.

A sentence is a derivation (`tree`), drawn by `sentences` and spelt by `english` and by `french`. English
determines French: no English sentence has two translations.
"""

from glassformer.datasets.grammar.pairs import translation_pairs

__all__ = ["translation_pairs"]
