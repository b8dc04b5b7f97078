"""Subjects of the benchmarks. Each module has a tuple of `EXPERIMENTS`."""
