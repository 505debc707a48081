"""Emitting events: the hub, its queue and writer thread, and the feed of live subscribers."""
