"""Measures the learner on the probes, next to the best policy and the best open-loop schedule."""
