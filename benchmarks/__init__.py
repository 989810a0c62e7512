"""Measured ratios against what a user would otherwise write: ``python -m benchmarks.NAME``."""
