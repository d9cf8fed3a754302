"""Looking inside a model: what each head of each layer attends to, as data, as pictures and in numbers.

maps = attention_maps(model, read(model, task, tokens))
maps["encoder"].weights          # (layers, heads, queries, keys)
maps.save("map.png")             # or .svg, .html, .npz
"""

from glassformer.inspection.capture import Record, Tap, attention_maps, capture
from glassformer.inspection.maps import AttentionMaps, Checks, Place, PlaceMaps
from glassformer.inspection.reading import Reading, read, read_answer
from glassformer.inspection.selection import Selection
from glassformer.inspection.statistics import HeadStatistics, head_statistics

__all__ = [
    "AttentionMaps",
    "Checks",
    "HeadStatistics",
    "Place",
    "PlaceMaps",
    "Reading",
    "Record",
    "Selection",
    "Tap",
    "attention_maps",
    "capture",
    "head_statistics",
    "read",
    "read_answer",
]
