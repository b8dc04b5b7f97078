"""A simulated disk: faults, power cuts, crash states."""
