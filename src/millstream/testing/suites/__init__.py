"""Conformance suites for implementations of `Filesystem`."""
