"""Keepalive: the same frame back."""

from __future__ import annotations

from millstream.protocols.native.frame import Frame, NativeFrameHeader, keepalive_frame
from millstream.protocols.native.operations import NativeOperation, check_empty
from millstream.servers.native.native_context import NativeContext


def keepalive(_: NativeFrameHeader, body: memoryview, __: NativeContext) -> Frame:
    """Tell a client that it is heard; its connection is not idle."""
    check_empty(body, NativeOperation.KEEPALIVE)
    return keepalive_frame()
