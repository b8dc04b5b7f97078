"""Failed logins."""

from __future__ import annotations

from millstream.errors import NotAuthenticated


class LoginFailed(NotAuthenticated):
    """A client could not prove who it is.

    The message is for the client and the same for all reasons that tell an attacker something;
    `reason` is for the log.
    """

    def __init__(self, reason: str, *, user: str = "") -> None:
        super().__init__("the login failed: user or password is wrong, or the message is malformed")
        self.reason = reason
        self.user = user
        """The user that the client claims to be, if it has said so."""
