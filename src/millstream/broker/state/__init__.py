"""Durable state of coordinators."""
