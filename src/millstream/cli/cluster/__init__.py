"""`millstream cluster`."""
