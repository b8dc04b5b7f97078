"""Every request and response that is spoken here, by family."""
