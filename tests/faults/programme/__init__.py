"""The fault programme: what can go wrong, how often it is made to, and what must hold each time.

A fault is a generator: it does harm once for each of a range of numbers in a `Place` and yields, each time,
None if what was promised held, else one line that says what came instead. `scripts/prove` runs all of them
and publishes the counts; `test_programme.py` is their quick tier among the other tests.
"""

from programme import (  # noqa: F401  each registers its faults
    context,
    corpora,
    coverage,
    damage,
    fuzzing,
    hostile,
    kills,
    loaders,
    network,
    numbers,
    process_group,
    scale,
    signals,
    storage,
    sweeping,
)
