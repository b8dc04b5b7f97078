"""Idempotent and transactional producers of a partition."""
