"""JSON values to and from Arrow columns."""
