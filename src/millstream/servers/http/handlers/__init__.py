"""Handlers, one module per resource."""
