"""The engine: who runs what where. Runs callables that are handed in; knows no reward or policy."""
