"""Putting a run together: its setup, and the halves that a worker and control need."""
