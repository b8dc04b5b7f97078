"""Sources of settings: file, environment and flags. Each yields what it sets, not yet validated."""

from __future__ import annotations

import os
import re
import stat
import tomllib
from collections.abc import Collection, Iterator, Mapping
from difflib import get_close_matches
from typing import Any, NamedTuple

from millstream.config.keys import CONFIG_VARIABLE, KEYS, PREFIX, TABLES, VARIABLES, ConfigKey
from millstream.config.origins import FromFile, FromFlag, FromVariable, Origin
from millstream.errors import InvalidConfig

FILE_NAME = "millstream.toml"
"""The file that is read if none is named and it exists."""

FILE_SIZE_MAX = 1024 * 1024
"""A hundred times the size of a file that sets everything, with a comment for each line."""

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH

_KUBERNETES = re.compile(
    r"(\w+_)?(SERVICE_(HOST|PORT(_\w+)?)=.*"
    r"|PORT(=(tcp|udp|sctp)://.*|_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?=.*))",
    re.DOTALL,
)
"""Variables that Kubernetes sets in every container for a service whose name begins with
`millstream`.
"""


_TABLES = tuple(f"{PREFIX}{table}_".upper() for table in TABLES)
_NAMES = {name.removeprefix(PREFIX): name for name in VARIABLES}


class KeyAssignment(NamedTuple):
    """A value that one source sets for one key."""

    key: ConfigKey
    value: Any
    origin: Origin


class UnknownKey(NamedTuple):
    """A key or variable of one source that does not exist."""

    name: str
    origin: Origin
    nearest: str
    """The most similar known name; empty if none is similar."""


class UnusedVariable(NamedTuple):
    """A variable that starts with our prefix, but is not similar to any of ours."""

    name: str


SourceEntry = KeyAssignment | UnknownKey | UnusedVariable


def find_config_file(path: str | None, environment: Mapping[str, str]) -> str | None:
    """Return the file to read: named by an option or a variable, or the one in this directory."""
    named = path or environment.get(CONFIG_VARIABLE)
    return named or (FILE_NAME if os.path.exists(FILE_NAME) else None)


def read_config_text(path: str) -> str:
    """Return the text of a file; raises `InvalidConfig` if it is not text, or too large."""
    try:
        with open(path, "rb") as file:
            data = file.read(FILE_SIZE_MAX + 1)
    except OSError as error:
        raise InvalidConfig(f"cannot read {path}: {error.strerror or error}") from error
    if len(data) > FILE_SIZE_MAX:
        raise InvalidConfig(f"{path} must have at most {FILE_SIZE_MAX} bytes, got more")
    try:
        return data.decode().replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise InvalidConfig(f"{path} is not valid UTF-8 at byte {error.start}") from error


def permission_warning(path: str) -> str | None:
    """Return a warning if users other than its owner can change the file."""
    mode = os.stat(path).st_mode
    if not mode & _OTHERS_WRITE:
        return None
    return f"{path} is writable by users other than its owner (mode {stat.S_IMODE(mode):o})"


def read_file(path: str, text: str) -> Iterator[SourceEntry]:
    """Yield what a file sets; raises `InvalidConfig` if it is not valid TOML."""
    try:
        document = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidConfig(f"{path} is not valid TOML: {error}") from error
    for table, content in document.items():
        if table not in TABLES or not isinstance(content, dict):
            origin = FromFile(path, (table,), text)
            nearest = table if table in TABLES else _nearest(table, [*TABLES, *KEYS])
            yield UnknownKey(table, origin, f"[{nearest}]" if nearest in TABLES else nearest)
            continue
        for name, value in content.items():
            origin = FromFile(path, (table, name), text)
            key = KEYS.get(f"{table}.{name}")
            yield KeyAssignment(key, value, origin) if key else _unknown(f"{table}.{name}", origin)


def read_environment(
    environment: Mapping[str, str], others: Collection[str] = ()
) -> Iterator[SourceEntry]:
    """Yield what variables set. An empty one sets nothing; `others` are read by other commands.

    Other programs use the environment too: a variable that is not similar to one of ours may be
    theirs, so it is only warned about.
    """
    for name in sorted(environment):
        if not name.startswith(PREFIX) or not environment[name] or name in others:
            continue
        if key := VARIABLES.get(name):
            yield KeyAssignment(key, environment[name], FromVariable(name))
        elif name != CONFIG_VARIABLE and not _is_set_by_kubernetes(name, environment[name]):
            nearest = _nearest(name.removeprefix(PREFIX), _NAMES, cutoff=0.75)
            is_ours = nearest or name.startswith(_TABLES)
            yield (
                UnknownKey(name, FromVariable(name), _NAMES.get(nearest, ""))
                if is_ours
                else (UnusedVariable(name))
            )


def _is_set_by_kubernetes(name: str, value: str) -> bool:
    return _KUBERNETES.fullmatch(f"{name.removeprefix(PREFIX)}={value}") is not None


def read_flags(flags: Mapping[str, Any], pairs: Collection[str]) -> Iterator[SourceEntry]:
    """Yield what options set: those with a key of their own, by its path, and `--set`."""
    for path, value in flags.items():
        yield KeyAssignment(KEYS[path], value, FromFlag(KEYS[path].flag))
    for pair in pairs:
        path, equals, value = pair.partition("=")
        if not equals:
            raise InvalidConfig(f"--set must be KEY=VALUE, got {pair!r}")
        path = path.strip()
        key = KEYS.get(path)
        yield (
            KeyAssignment(key, value, FromFlag("--set"))
            if key
            else _unknown(path, FromFlag("--set"))
        )


def _unknown(path: str, origin: Origin) -> UnknownKey:
    """Look for what was meant: the same name in another table, then a similar name."""
    name = path.rpartition(".")[2]
    elsewhere = [key.path for key in KEYS.values() if key.name == name]
    return UnknownKey(path, origin, elsewhere[0] if elsewhere else _nearest(path, KEYS))


def _nearest(name: str, names: Collection[str], *, cutoff: float = 0.6) -> str:
    return next(iter(get_close_matches(name[:200], names, n=1, cutoff=cutoff)), "")
