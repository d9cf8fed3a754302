"""Fault programme: faults that are injected many times, and the promise that must hold each time.

Each module registers its faults with `base.fault`; `all_faults` imports them all. `scripts/prove` runs the
quick or the full tier and publishes the counts in docs/results/reliability.md.
"""
