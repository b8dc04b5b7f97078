"""Verification that all acknowledged records exist, in a data directory or on a node."""
