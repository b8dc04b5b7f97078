"""The native protocol: frames, operations, records and error codes."""
