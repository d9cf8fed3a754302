"""Fault programme: what can go wrong, how often it is provoked, and what must hold each time.

`all_faults` registers every fault. `scripts/prove` runs them and publishes the counts.
"""
