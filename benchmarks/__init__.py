"""Measured ratios against what a user would otherwise write. Each module runs by itself: ``python -m benchmarks.NAME``."""
