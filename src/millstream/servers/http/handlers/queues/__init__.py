"""Handlers of queues and jobs."""
