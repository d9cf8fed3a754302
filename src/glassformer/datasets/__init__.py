"""Generated corpora: translation pairs from a grammar, and reviews with labels. Word tables are TSV files."""
