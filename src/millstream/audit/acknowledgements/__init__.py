"""Acknowledgement files: written by clients, read by the verification."""
