"""A partition: append, read, offset lookup."""
