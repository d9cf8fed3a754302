"""Named checks of a model, of a run and of the machine, each with its measured number.

    from glassformer.doctor.examination import examine_model
    report = examine_model(Experiment(resolve("reversal")))
    report.passed, report["padding cannot change real positions"].measurement.value

Nothing is imported here: the machine is examined even where PyTorch is broken.
"""
