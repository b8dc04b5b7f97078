"""The `millstream` command."""
