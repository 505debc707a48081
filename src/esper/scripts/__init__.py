"""The two commands, `esper-train` and `esper-telemetry`."""
