"""Requests of clients on their way to the nodes that are responsible for them."""
