"""SASL mechanisms by which clients log in, as pure functions of messages and credentials."""
