"""Formats of the small files beside a segment."""
