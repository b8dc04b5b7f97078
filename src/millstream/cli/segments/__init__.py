"""`millstream segments`."""
