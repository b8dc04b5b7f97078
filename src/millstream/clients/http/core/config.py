"""Settings of the HTTP client."""

from __future__ import annotations

from dataclasses import dataclass, field

from millstream.clients.tls import ClientTls
from millstream.config.units import KIB, MIB
from millstream.errors import InvalidConfig

CLIENT_ID_LENGTH_MAX = 255
"""Longest client id that a node accepts."""


_TEXTS = ("client_id", "tls", "token", "token_file")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConfig:
    """Timeouts, limits and retries of a client."""

    client_id: str = "millstream"
    """Name that the client sends with each request. The node charges requests to the quotas of that
    name, so programs that need separate quotas need separate names.
    """

    token: str | None = field(default=None, repr=False)
    """Token with which the client logs in, at a node with logins. Without it and `token_file`, that
    of the variable `MILLSTREAM_TOKEN`, or of the file that `MILLSTREAM_TOKEN_FILE` names.
    """

    token_file: str | None = None
    """File that has the token."""

    timeout_s: float = 30.0
    """Deadline of a call, including all attempts and pauses."""

    connect_s_max: float = 5.0
    """Time limit for one attempt to connect."""

    answer_s_max: float = 10.0
    """Time limit for one complete response, in addition to the time that the request asks the node
    to wait. It is absolute: a response that arrives byte by byte does not extend it.
    """

    silence_s_max: float = 60.0
    """A live connection that receives nothing for this long is closed and reopened. By default, a
    node sends a heartbeat every 15 s.
    """

    idle_s_max: float = 4.0
    """Idle connections are closed after this time. Nodes close theirs after 5 s; a request on a
    connection that is just being closed may or may not have been executed.
    """

    pause_s_min: float = 0.05
    """Approximate pause after the first attempt. It doubles after each further one."""

    pause_s_max: float = 2.0
    """Longest pause, unless the node asks for a longer one."""

    answer_size_max: int = 64 * MIB
    """Largest response in bytes. A page of records has at most 16 MiB of keys and values, before
    JSON and base64 make them longer.
    """

    event_size_max: int = 64 * MIB
    """Largest live event in bytes. It holds as many records as a page."""

    head_size_max: int = 64 * KIB
    """Largest response head (status line and headers) in bytes."""

    connections_max: int = 64
    """Maximum number of open connections. Requests beyond it wait for one."""

    gather_bytes_max: int = 1 * MIB
    """Appends that wait for the same partition share a request up to this size."""

    gather_records_max: int = 5_000
    """The same limit in records. A node accepts up to 10,000 in a request."""

    waiting_bytes_max: int = 32 * MIB
    """Bytes of unacknowledged appends that an `AsyncClient` holds, all together; further appends
    wait for capacity.
    """

    tls: ClientTls = field(default_factory=ClientTls)
    """Authorities that are trusted, and the certificate that is shown, for `https://`. Without
    them, those of `MILLSTREAM_CA_FILE`, `MILLSTREAM_CERT_FILE` and `MILLSTREAM_KEY_FILE`.
    """

    def __post_init__(self) -> None:
        is_name = self.client_id.isprintable() and self.client_id == self.client_id.strip(" ")
        if not is_name or len(self.client_id) > CLIENT_ID_LENGTH_MAX:
            raise InvalidConfig(
                f"client_id must be at most {CLIENT_ID_LENGTH_MAX} printable characters without"
                f" spaces at either end, got {self.client_id[:300]!r}"
            )
        for name in self.__dataclass_fields__:
            value = getattr(self, name)
            if name not in _TEXTS and not value > 0:
                raise InvalidConfig(f"{name} must be above 0, got {value}")
        if self.pause_s_min > self.pause_s_max:
            raise InvalidConfig(
                f"pause_s_min must not be above pause_s_max ({self.pause_s_max}),"
                f" got {self.pause_s_min}"
            )
