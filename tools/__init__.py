"""Tools that work on Esper rather than in it."""
