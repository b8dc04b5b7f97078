"""The protocol that the nodes of a cluster speak with each other: bytes, and nothing else."""
