"""Queue workers, without I/O."""
