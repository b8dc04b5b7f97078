"""Checks and measurements around every request."""
