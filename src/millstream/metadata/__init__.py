"""Metadata store: state that a cluster agrees on; a single node keeps it in SQLite."""
