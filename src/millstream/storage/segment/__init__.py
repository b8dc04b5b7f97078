"""Segments: reading, scanning, sealing."""
