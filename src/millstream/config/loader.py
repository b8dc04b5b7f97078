"""Loads the configuration of a node from all sources, and reports everything that is wrong."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from millstream.config import sources, values
from millstream.config.keys import KEYS, PARTS, ConfigKey
from millstream.config.origins import FromDefault, FromFile, FromHostName, Origin
from millstream.config.schema import InvalidField, NodeConfig
from millstream.config.sources import KeyAssignment, SourceEntry, UnknownKey, UnusedVariable
from millstream.errors import InvalidConfig

_NODE_ID = KEYS["node.id"]
_NUMBER_AT_END = re.compile(r"[0-9]+$")

SHOWN_LENGTH_MAX = 100
"""Characters of a wrong value that an error repeats: enough to find it by."""


class ConfigurationError(InvalidConfig):
    """Everything that is wrong with a configuration, one sentence per problem."""

    def __init__(self, problems: Collection[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = tuple(problems)


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """The settings of a node, and the origin of each value."""

    node: NodeConfig
    origins: Mapping[str, Origin] = field(default_factory=dict)
    """Origins of the values that were set, by key path; other keys have their default."""
    file: str | None = None
    """The configuration file that was read."""
    warnings: tuple[str, ...] = ()

    def value(self, key: ConfigKey) -> Any:
        return getattr(getattr(self.node, key.part) if key.part else self.node, key.field)

    def origin(self, key: ConfigKey) -> Origin:
        return self.origins.get(key.path, FromDefault())


def load_configuration(
    *,
    environment: Mapping[str, str],
    config: str | None = None,
    flags: Mapping[str, Any] | None = None,
    pairs: Collection[str] = (),
    others: Collection[str] = (),
    host_name: str = "",
) -> Configuration:
    """Read the file, the variables and the flags, of which the later win, and validate all values.

    `config` is the path of the file, `flags` has the values of options that have a key of their
    own, by key path, `pairs` the arguments of `--set`, and `others` the names of variables that
    other commands read. `host_name` is that of the machine, whose number is the id of a node in a
    cluster that has no other one. Raises `ConfigurationError` with everything that is wrong.
    """
    problems: list[str] = []
    warnings: list[str] = []
    assigned: dict[str, KeyAssignment] = {}
    path = sources.find_config_file(config, environment)
    for entries in (
        _read_file(path, problems, warnings) if path else iter(()),
        sources.read_environment(environment, others),
        sources.read_flags(flags or {}, pairs),
    ):
        assigned |= _resolve_source(entries, problems, warnings)
    if (etcd := assigned.get("cluster.etcd")) and etcd.value and _NODE_ID.path not in assigned:
        _take_node_id(host_name, assigned, problems)
    if problems:
        raise ConfigurationError(problems)
    node = _build_node(assigned)
    origins = {path: given.origin for path, given in assigned.items()}
    return Configuration(node=node, origins=origins, file=path, warnings=tuple(warnings))


def _take_node_id(host_name: str, assigned: dict[str, KeyAssignment], problems: list[str]) -> None:
    """Take the id of a node in a cluster from the number at the end of its host name."""
    found = _NUMBER_AT_END.search(host_name.partition(".")[0])
    if found is None:
        problems.append(
            f"a node of a cluster needs an id: set {_NODE_ID.flag} or {_NODE_ID.variable}, or let"
            f" the host name end with a number, got {host_name!r}"
        )
        return
    origin = FromHostName(host_name)
    try:
        value = values.parse_value(_NODE_ID, found[0])
    except ValueError:
        problems.append(describe_invalid_value(_NODE_ID, found[0], origin))
        return
    assigned[_NODE_ID.path] = KeyAssignment(_NODE_ID, value, origin)


def _read_file(path: str, problems: list[str], warnings: list[str]) -> Iterator[SourceEntry]:
    try:
        text = sources.read_config_text(path)
        entries = list(sources.read_file(path, text))
    except InvalidConfig as error:
        problems.append(str(error))
        return
    if warning := sources.permission_warning(path):
        warnings.append(warning)
    yield from entries


def _resolve_source(
    entries: Iterator[SourceEntry], problems: list[str], warnings: list[str]
) -> dict[str, KeyAssignment]:
    """Parse the entries of one source, which may not set a key to two different values."""
    assigned: dict[str, KeyAssignment] = {}
    try:
        for entry in entries:
            if isinstance(entry, UnknownKey):
                problems.append(_describe_unknown(entry))
                continue
            if isinstance(entry, UnusedVariable):
                warnings.append(f"{entry.name} is set but not used")
                continue
            key, given, origin = entry
            try:
                value = values.parse_value(key, given)
            except ValueError:
                problems.append(describe_invalid_value(key, given, origin))
                continue
            before = assigned.setdefault(key.path, KeyAssignment(key, value, origin))
            if before.value != value:
                first = _shortened(values.display_value(key, before.value))
                second = _shortened(values.display_value(key, value))
                problems.append(
                    f"{key.path} is set twice: {first} ({before.origin}) and {second} ({origin})"
                )
    except InvalidConfig as error:
        problems.append(str(error))
    return assigned


def describe_invalid_value(key: ConfigKey, given: Any, origin: Origin) -> str:
    """Return an error message: the key, what is allowed, the value and its origin."""
    return f"{key.path} must be {values.describe_allowed(key)}, got {_shortened(given)} ({origin})"


def _describe_unknown(entry: UnknownKey) -> str:
    name = _shortened(entry.name).strip("'\"")
    origin = f" ({entry.origin})" if str(entry.origin) != entry.name else ""
    kind = "key" if isinstance(entry.origin, FromFile) or "." in entry.name else "variable"
    hint = f"; did you mean {entry.nearest}?" if entry.nearest else ""
    return f"unknown {kind} {name}{origin}{hint}"


def _shortened(given: Any) -> str:
    text = repr(given)
    return text if len(text) <= SHOWN_LENGTH_MAX else f"{text[:SHOWN_LENGTH_MAX]}…"


def _build_node(assigned: Mapping[str, KeyAssignment]) -> NodeConfig:
    """Build the config of a node from values that are valid one by one, and check them together."""
    # `NodeConfig` has the part "" and comes first in `PARTS`, so it is built last, from the others.
    built: dict[str, Any] = {}
    problems = []
    for part, (config, _) in reversed(list(PARTS.items())):
        own = {each.key.field: each.value for each in assigned.values() if each.key.part == part}
        try:
            built[part] = config(**own, **({} if part else built))
        except InvalidField as error:
            problems.append(_with_key_names(error, part, assigned))
            built[part] = config()
    if problems:
        raise ConfigurationError(problems)
    node: NodeConfig = built[""]
    return node


def _with_key_names(error: InvalidField, part: str, assigned: Mapping[str, KeyAssignment]) -> str:
    """Return the message with keys for fields, and with the origins of those that were set."""
    keys = {key.field: key.path for key in KEYS.values() if key.part == part}
    paths = [keys[field] for field in error.fields]
    origins = dict.fromkeys(str(assigned[path].origin) for path in paths if path in assigned)
    return error.with_names(keys) + (f" ({', '.join(origins)})" if origins else "")
