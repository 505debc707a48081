"""The operator's view: one model of a run, and the console, dashboard and report that show it."""
