"""Consumer groups and what they committed."""
