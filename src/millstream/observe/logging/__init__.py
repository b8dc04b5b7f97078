"""Structured log events: formatter and non-blocking writer."""
