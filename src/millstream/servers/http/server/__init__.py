"""Connections: accepting, framing, parsing, flow control."""
