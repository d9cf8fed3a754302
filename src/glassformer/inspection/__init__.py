"""Model inspection: attention maps, head statistics, ablations, attribution and decoding traces.

    from glassformer.inspection.examples import prepare_input
    from glassformer.inspection.record import attention_maps

    maps = attention_maps(model, prepare_input(model, task, tokens))
    maps["encoder"].weights          # (layers, heads, queries, keys)
    maps.save("map.png")             # or .svg, .html, .npz

`Run` offers all of it for a trained model: `attention`, `trace`, `heads`, `ablate_head`, `ablate_edge`,
`occlude`, `rollout`, `logit_lens`. This file imports nothing, so that `record` and `capture` can be
used without tasks and data.
"""
