"""Bootstrap addresses of brokers."""

from __future__ import annotations

from typing import NamedTuple

from millstream.errors import InvalidConfig

_PORT_MAX = 65_535


class BrokerAddress(NamedTuple):
    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def parse_bootstrap(text: str) -> tuple[BrokerAddress, ...]:
    """Parse `host:port,host:port`, as in Kafka's `bootstrap.servers`; IPv6 in brackets."""
    return tuple(dict.fromkeys(_parse(part.strip()) for part in text.split(",")))


def _parse(text: str) -> BrokerAddress:
    host, _, port = text.rpartition(":")
    is_bracketed = host.startswith("[") and host.endswith("]")
    if is_bracketed:
        host = host[1:-1]
    is_port = port.isascii() and port.isdigit() and 0 < int(port) <= _PORT_MAX
    if not host or not is_port or (":" in host) != is_bracketed:
        raise InvalidConfig(
            f"address must be host:port with a port between 1 and {_PORT_MAX}, got {text!r}"
        )
    return BrokerAddress(host, int(port))
