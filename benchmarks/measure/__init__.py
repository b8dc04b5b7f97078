"""Framework of the benchmarks."""
