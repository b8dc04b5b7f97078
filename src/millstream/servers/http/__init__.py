"""The HTTP server of a node."""
