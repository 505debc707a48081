"""Telemetry of a run: gradients, anomalies and their events. Never changes training."""
