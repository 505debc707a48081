"""The engine: supervisor, lanes, device fences, governor. Runs the work that is handed in."""
