"""The storage engine: segments, group commit, recovery. The only package that touches files."""
