"""Read-only tools over a data directory."""
