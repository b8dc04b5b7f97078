"""Records and batches: what they mean and how their bytes lie. Pure: no I/O, no clock."""
