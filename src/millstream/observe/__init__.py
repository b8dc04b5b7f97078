"""Metrics: declared once, read from plain numbers when they are asked for."""
