"""What a cluster agrees on; alone, a node keeps it in SQLite."""
