"""`millstream quota`."""
