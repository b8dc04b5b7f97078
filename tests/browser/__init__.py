"""A real browser against a real node. `make browser` installs it where it is missing."""
