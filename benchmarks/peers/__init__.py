"""Peers: other servers that do some of what a node does, measured beside it."""

from __future__ import annotations

from measure.peers import Start

STARTS: dict[str, Start] = {}
"""How each is started. The first word is what `--peers` calls it."""

PEERS = tuple(dict.fromkeys(name.split()[0] for name in STARTS))
