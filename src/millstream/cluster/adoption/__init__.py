"""Adoption: the data directory of a lone node becomes that of the first node of a cluster."""
