"""Named checks of a model, a run or this machine, each with a measured value and a limit.

    from glassformer.doctor.runner import check_model
    report = check_model(Experiment(resolve("reversal")))
    report.passed, report["padding does not affect outputs or loss"].measurement.value

This file imports nothing, so that the machine can be checked even if PyTorch cannot be imported.
"""
