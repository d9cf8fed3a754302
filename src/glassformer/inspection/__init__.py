"""Looking inside a model: what each head attends to, what it is worth, and how an answer came about.

maps = attention_maps(model, read(model, task, tokens))
maps["encoder"].weights          # (layers, heads, queries, keys)
maps.save("map.png")             # or .svg, .html, .npz

`trained.Run` has all of it for a run: `attention`, `trace`, `heads`, `switch_off`, `cut_edge`, `occlude`,
`rollout`, `logit_lens`. How far each can be trusted stands in `trust.py`.
"""

from glassformer.inspection.ablation import Edge, Effect, Effects
from glassformer.inspection.attribution import LogitLens
from glassformer.inspection.examples import Reading, read, read_answer
from glassformer.inspection.maps import AttentionMaps, Checks, Selection, Site, SiteMaps
from glassformer.inspection.record import AttentionRecorder, HeadId, Record, attention_maps, capture
from glassformer.inspection.statistics import HeadStatistics, head_statistics
from glassformer.inspection.trace import Trace

__all__ = [
    "AttentionMaps",
    "AttentionRecorder",
    "Checks",
    "Edge",
    "Effect",
    "Effects",
    "HeadId",
    "HeadStatistics",
    "LogitLens",
    "Reading",
    "Record",
    "Selection",
    "Site",
    "SiteMaps",
    "Trace",
    "attention_maps",
    "capture",
    "head_statistics",
    "read",
    "read_answer",
]
