"""Rewards: two families and seven modes, all stateless functions."""
