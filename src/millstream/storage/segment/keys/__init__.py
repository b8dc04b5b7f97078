"""The key index of a sealed segment."""
