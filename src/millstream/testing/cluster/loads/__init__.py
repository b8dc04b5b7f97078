"""Loads: real clients that work in a thread, each with a history for the checker."""
