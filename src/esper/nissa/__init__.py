"""The bus: how events leave a run, and how they are counted and compared. Never imports torch."""
