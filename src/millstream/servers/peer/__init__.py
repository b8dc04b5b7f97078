"""The peer server: what the other nodes of the cluster connect to."""
