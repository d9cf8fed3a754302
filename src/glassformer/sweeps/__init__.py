"""Sweeps: many runs that differ in a few values, shared among workers, and one honest answer."""
