"""Figures: line charts, and attention maps as PNG, SVG and an offline HTML page."""
