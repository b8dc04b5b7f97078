"""Transactions: the state machine of one transactional id, and the coordinator of all ids."""
