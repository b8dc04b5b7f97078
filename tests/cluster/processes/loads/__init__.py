"""Loads of real clients, each with a check of its own history."""
