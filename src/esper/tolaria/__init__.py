"""The engine: supervisor, lanes, device fences, governor. Runs the work it is given."""
