"""Figures with targets: `python -m tools.bench`."""
