"""Evaluates and compares frozen controllers on fresh envs."""
