"""Grammar of a few hundred words that generates English sentences with their French translations.

`sentences` draws a random derivation, whose classes are in `tree`. `english` and `french` turn the derivation
into text. Each English sentence has exactly one translation. `analysis` knows the gender and number of each
word, and which word translates which.
"""

from glassformer.datasets.grammar.sentences import translation_pairs

__all__ = ["translation_pairs"]
