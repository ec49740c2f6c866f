"""Ready-made receivers of the events: logging, Prometheus, OpenTelemetry."""
