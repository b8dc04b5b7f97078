"""Batch and streaming sinks."""
