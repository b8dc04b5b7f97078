"""What a client may be set to."""

from __future__ import annotations

from dataclasses import dataclass

from millstream.config.schema import KIB, MIB
from millstream.errors import InvalidConfig

CLIENT_ID_LENGTH_MAX = 255
"""What a node takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConfig:
    """How long a client waits, how much it takes, and how it tries again."""

    client_id: str = "millstream"
    """What the client calls itself: the node charges what it uses to the quotas of that name.
    Programs that are to have quotas of their own need names of their own."""

    timeout_s: float = 30.0
    """Until when a call is done or has failed: one deadline for all its attempts and pauses."""

    connect_s_max: float = 5.0
    """How long one attempt to connect may take."""

    answer_s_max: float = 10.0
    """How long one attempt waits for its whole answer, beside what it asked the node to wait.
    Absolute: an answer that trickles in byte by byte does not get longer."""

    silence_s_max: float = 60.0
    """A live connection that says nothing for so long is given up, and made anew. A node says
    something every 15 s, unless it is set otherwise."""

    idle_s_max: float = 4.0
    """A connection that was not used for so long is closed. Nodes close theirs after 5 s; asking
    over one that is just being closed leaves a doubt whether it was heard."""

    pause_s_min: float = 0.05
    """About how long to wait after the first attempt; twice as long after each further one."""

    pause_s_max: float = 2.0
    """The longest pause, unless the node asks for a longer one."""

    answer_size_max: int = 64 * MIB
    """Bytes of an answer; a page of records has at most 16 MiB of keys and values, before JSON and
    base64 make them longer."""

    event_size_max: int = 64 * MIB
    """Bytes of one live event, which is made of as many records as a page."""

    head_size_max: int = 64 * KIB
    """Bytes of an answer's first line and headers."""

    connections_max: int = 64
    """Connections at once; who needs one more waits for it."""

    gather_bytes_max: int = 1 * MIB
    """Appends that wait for the same partition share a request up to this size."""

    gather_records_max: int = 5_000
    """The same, in records; a request may have 10,000."""

    waiting_bytes_max: int = 32 * MIB
    """What appends of an `AsyncClient` may hold that were not answered yet, all together; further
    ones wait before they are taken in."""

    def __post_init__(self) -> None:
        is_name = self.client_id.isprintable() and self.client_id == self.client_id.strip(" ")
        if not is_name or len(self.client_id) > CLIENT_ID_LENGTH_MAX:
            raise InvalidConfig(
                f"client_id is {self.client_id[:300]!r}, allowed is what can be printed, up to"
                f" {CLIENT_ID_LENGTH_MAX} characters, without a space at either end"
            )
        for name in self.__dataclass_fields__:
            value = getattr(self, name)
            if name != "client_id" and not value > 0:
                raise InvalidConfig(f"{name} is {value}, allowed is what is above 0")
        if self.pause_s_min > self.pause_s_max:
            found = f"pause_s_min is {self.pause_s_min}, pause_s_max is {self.pause_s_max}"
            raise InvalidConfig(f"{found}: the first may not be the larger one")
