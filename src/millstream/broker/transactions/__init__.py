"""Transactions: the machine of one transactional id, and the coordinator of all of them."""
