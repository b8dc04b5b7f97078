"""`millstream chaos`."""
