"""Registration of every fault: importing this module fills `base.FAULTS`."""

from reliability import (  # noqa: F401  each registers its faults
    corpora,
    coverage,
    damage,
    environments,
    exports,
    fuzzing,
    hostile,
    imports,
    kills,
    loaders,
    network,
    numbers,
    ranks,
    scale,
    signals,
    storage,
    sweeping,
)
