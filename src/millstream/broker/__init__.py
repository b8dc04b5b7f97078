"""Topics, groups, producers and transactions; no socket, no wire format."""
