"""Audit: files of acknowledged records, and verification that a node still has them."""
