"""Logins by JWTs that another server issues: its public keys, and the checks of a JWT."""
