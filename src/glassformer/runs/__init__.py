"""Runs: experiment, run folder, training session, trained model, transfer and resume verification."""
