"""Processes that a command runs beside itself: etcd, and nodes of a local cluster."""
