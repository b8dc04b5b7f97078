"""Replication between nodes: the shells around the machines of leaders and followers."""
