"""Compiled loops that several packages share. Need Numba."""
