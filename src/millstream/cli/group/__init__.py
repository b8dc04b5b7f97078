"""`millstream group`."""
