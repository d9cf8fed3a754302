"""The parts of the check of text data: lines, rows, repeats, findings. `data/faults.py` joins them."""
