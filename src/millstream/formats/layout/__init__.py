"""Schema plans, column slots and Arrow assembly shared by all formats."""
