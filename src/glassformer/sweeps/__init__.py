"""Sweeps: train many variants of one config on parallel workers, and compare them."""
