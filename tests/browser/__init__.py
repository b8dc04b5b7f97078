"""Tests with a real browser and a real node. `make browser` installs a missing browser."""
