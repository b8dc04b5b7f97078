"""From a parsed request to a handler and back."""
