"""Decisions made and carried out: op handlers, and the controllers that stand beside the policy."""
