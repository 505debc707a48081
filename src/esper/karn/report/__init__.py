"""Self-contained files about finished runs, and the tables of comparisons."""
