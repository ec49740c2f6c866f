"""Measures locks side by side on real local servers: ``python -m benchmarks``."""
