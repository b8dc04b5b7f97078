"""One connection of a Kafka client."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.servers.frame_receiver import FrameReceiver
from millstream.servers.kafka.logins import ConnectionLogin
from millstream.servers.request_connection import RequestConnection

if TYPE_CHECKING:
    from millstream.config.schema import KafkaConfig
    from millstream.servers.kafka.listener import KafkaListener


class KafkaProtocol(RequestConnection):
    """The protocol of one connection. Runs on the event loop."""

    _listener: KafkaListener
    _config: KafkaConfig

    def __init__(self, listener: KafkaListener) -> None:
        receiver = FrameReceiver(listener.blocks, frame_size_max=listener.config.request_size_max)
        super().__init__(listener, receiver)
        self._login: ConnectionLogin | None = None
        self.client_id = ""
        """Of the last request that was not a plain produce."""

    def login(self) -> ConnectionLogin | None:
        """Return the logins of this connection; `None` if the node has none."""
        if self._login is None and self._listener.logins is not None:
            self._login = ConnectionLogin(self._listener.logins, self)
        return self._login
