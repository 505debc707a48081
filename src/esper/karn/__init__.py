"""Monitoring: a view model of a run, and the console, dashboard and report that render it."""
