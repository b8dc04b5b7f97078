"""Records and batches, and their encoding. Pure: no I/O, no clock."""
