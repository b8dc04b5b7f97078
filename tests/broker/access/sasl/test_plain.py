"""PLAIN: which messages are read."""

from __future__ import annotations

import pytest

from millstream.broker.access.sasl.failure import LoginFailed
from millstream.broker.access.sasl.plain import PASSWORD_SIZE_MAX, PlainLogin, read_plain


@pytest.mark.parametrize("message", [b"\0alice\0secret", b"alice\0alice\0secret"])
def test_user_and_password_are_read(message: bytes) -> None:
    assert read_plain(message) == PlainLogin("alice", "secret")


def test_the_password_is_not_shown() -> None:
    assert "secret" not in repr(read_plain(b"\0alice\0secret"))


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"alice",
        b"\0alice",
        b"\0\0secret",
        b"\0alice\0",
        b"\0alice\0secret\0",
        b"bob\0alice\0secret",
        b"\0al\xffice\0secret",
        b"\0" + b"a" * 256 + b"\0secret",
        b"\0alice\0" + b"s" * (PASSWORD_SIZE_MAX + 1),
        b"\0alice\0" + b"s" * 10_000,
    ],
)
def test_other_messages_are_refused_without_repeating_them(message: bytes) -> None:
    with pytest.raises(LoginFailed) as failed:
        read_plain(message)
    assert "secret" not in str(failed.value) + failed.value.reason
