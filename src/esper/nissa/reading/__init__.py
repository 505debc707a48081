"""Reading logs: lines, foreign logs, following a file, rendering and SQL."""
