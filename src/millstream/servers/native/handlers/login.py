"""Authenticate: logs a client in by a token."""

from __future__ import annotations

from millstream.errors import CapExceeded, NotAuthenticated
from millstream.protocols.native.frame import Frame, NativeFrameHeader, control_frame
from millstream.protocols.native.operations import Reply, login_body, read_token
from millstream.servers.native.native_context import NativeContext


def authenticate(_: NativeFrameHeader, body: memoryview, context: NativeContext) -> Frame:
    """Let the owner of a token send requests. A failed login is answered, and ends the connection.

    On a node without logins, everyone may do everything, so every token is accepted.
    """
    token = read_token(body)
    access, connection = context.access, context.connection
    if access is None:
        return _answer("this node has no logins: everyone may do everything", is_success=True)
    try:
        caller = access.log_in_by_token(token, connection.host)
        connection.log_in(caller, 0)  # The gate tells the listener when the login ends.
    except (NotAuthenticated, CapExceeded) as error:
        connection.end()
        return _answer(str(error), is_success=False)
    return _answer(f"logged in as {caller.principal}", is_success=True)


def _answer(message: str, *, is_success: bool) -> Frame:
    return control_frame(Reply.AUTHENTICATE, login_body(message, is_success=is_success))
