"""Handlers of the cluster."""
