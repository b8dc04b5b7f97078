"""Inspection of stores on disk: verification, read-only access, repair of indexes."""
