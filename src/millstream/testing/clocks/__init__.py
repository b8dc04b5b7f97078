"""Clocks, timers and executors under the control of a test."""
