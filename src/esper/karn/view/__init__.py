"""The view model of a run, and what updates it from the log."""
