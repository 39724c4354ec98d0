"""Access log, metrics, health and OpenTelemetry."""
