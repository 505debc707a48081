"""Rewards: two families, seven modes, no state of their own."""
