"""Acknowledgement files that clients write, and their verification."""
