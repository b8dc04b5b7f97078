"""Topic configuration keys, values and defaults."""
