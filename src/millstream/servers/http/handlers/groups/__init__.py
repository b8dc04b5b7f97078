"""Handlers of consumer groups."""
