"""Handlers of the native operations, one module for each family."""
