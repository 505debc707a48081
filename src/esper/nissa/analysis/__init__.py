"""Analysing logs: counts, profiles, order rules, baselines, comparison and validation."""
