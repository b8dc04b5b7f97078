"""Versions of etcd that a cluster can use."""

from __future__ import annotations

import re

from millstream.errors import InvalidConfig

VERSION_MIN = (3, 4)
"""The first with the gateway at `/v3`."""

_DAMAGING = ((3, 5, 0), (3, 5, 2))
"""These can lose acknowledged changes when a member crashes, and their members can disagree."""

_VERSION = re.compile(r"(\d{1,6})\.(\d{1,6})\.(\d{1,6})")


def check_version(version: str, address: str) -> None:
    """Raise `InvalidConfig` if this version of etcd must not be used."""
    match = _VERSION.match(version)
    if match is None:
        raise InvalidConfig(f"{address}: expected a version of etcd, got {version[:100]!r}")
    numbers = tuple(map(int, match.groups()))
    if numbers < VERSION_MIN:
        raise InvalidConfig(f"{address}: etcd must have version 3.4 or later, got {version}")
    lowest, highest = _DAMAGING
    if lowest <= numbers <= highest:
        raise InvalidConfig(
            f"{address}: etcd {version} can lose acknowledged changes; use 3.5.3 or later, or 3.4"
        )
