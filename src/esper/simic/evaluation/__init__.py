"""Frozen controllers on fresh envs."""
