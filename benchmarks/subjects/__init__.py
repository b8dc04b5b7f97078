"""What is measured. Each module has a tuple of `EXPERIMENTS`."""
