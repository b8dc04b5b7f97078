"""Wire protocols, without I/O."""
