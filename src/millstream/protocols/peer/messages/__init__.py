"""Messages between peers, one module per subject."""
