"""Sealed segments in a cold store: the store itself, its cache, relocation."""
