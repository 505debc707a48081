"""Telemetry: emitting, storing, streaming, counting and comparing events. Never imports torch."""
