"""Handlers of topics."""
