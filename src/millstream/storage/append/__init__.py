"""The append path of one log."""
