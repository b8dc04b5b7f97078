"""Looking whether all that was acknowledged is there: in a directory, or behind a door."""
