"""Figures: style, attention maps as PNG, SVG and an offline page, line charts."""
