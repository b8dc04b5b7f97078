"""All places together: what a node is set to, and what is wrong with it."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from millstream.config import sources, values
from millstream.config.keys import KEYS, PARTS, ConfigKey
from millstream.config.origins import FromDefault, FromFile, Origin
from millstream.config.schema import NodeConfig
from millstream.config.sources import KeyAssignment, SourceEntry, UnknownKey, UnusedVariable
from millstream.errors import InvalidConfig

SHOWN_LENGTH_MAX = 100
"""How much of a wrong value is repeated: enough to find it by."""


class ConfigurationError(InvalidConfig):
    """Everything that is wrong with a configuration, a sentence for each."""

    def __init__(self, problems: Collection[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = tuple(problems)


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """What a node is set to, and where each value came from."""

    node: NodeConfig
    origins: Mapping[str, Origin] = field(default_factory=dict)
    """Of what was set, by the path of its key; the rest has its default."""
    file: str | None = None
    """The file that was read."""
    warnings: tuple[str, ...] = ()

    def value(self, key: ConfigKey) -> Any:
        """Return what a key is set to."""
        return getattr(getattr(self.node, key.part) if key.part else self.node, key.field)

    def origin(self, key: ConfigKey) -> Origin:
        """Return where that came from."""
        return self.origins.get(key.path, FromDefault())


def load_configuration(
    *,
    environment: Mapping[str, str],
    config: str | None = None,
    flags: Mapping[str, Any] | None = None,
    pairs: Collection[str] = (),
    others: Collection[str] = (),
) -> Configuration:
    """Read a file, variables and flags, of which the later win, and check all that they say.

    `config` names the file, `flags` has what options of their own say, by the path of their key,
    `pairs` what `--set` says, and `others` names variables that are none of ours. Raises
    `ConfigurationError` with everything that is wrong.
    """
    problems: list[str] = []
    warnings: list[str] = []
    settled: dict[str, KeyAssignment] = {}
    path = sources.find_config_file(config, environment)
    for found in (
        _read_file(path, problems, warnings) if path else iter(()),
        sources.read_environment(environment, others),
        sources.read_flags(flags or {}, pairs),
    ):
        settled |= _resolve_source(found, problems, warnings)
    if problems:
        raise ConfigurationError(problems)
    node = _node({given.key: given.value for given in settled.values()}, settled)
    origins = {path: given.origin for path, given in settled.items()}
    return Configuration(node=node, origins=origins, file=path, warnings=tuple(warnings))


def _read_file(path: str, problems: list[str], warnings: list[str]) -> Iterator[SourceEntry]:
    try:
        text = sources.read_config_text(path)
        found = list(sources.read_file(path, text))
    except InvalidConfig as error:
        problems.append(str(error))
        return
    if warning := sources.permission_warning(path):
        warnings.append(warning)
    yield from found


def _resolve_source(
    found: Iterator[SourceEntry], problems: list[str], warnings: list[str]
) -> dict[str, KeyAssignment]:
    """Read and check what one place says; it may not say two things of one key."""
    settled: dict[str, KeyAssignment] = {}
    try:
        for one in found:
            if isinstance(one, UnknownKey):
                problems.append(_unknown(one))
                continue
            if isinstance(one, UnusedVariable):
                warnings.append(f"{one.name} is set, and nothing reads it")
                continue
            key, given, origin = one
            try:
                value = values.parse_value(key, given)
            except ValueError:
                problems.append(describe_invalid_value(key, given, origin))
                continue
            before = settled.setdefault(key.path, KeyAssignment(key, value, origin))
            if before.value != value:
                first = _shortened(values.display_value(key, before.value))
                second = _shortened(values.display_value(key, value))
                problems.append(
                    f"{key.path} is set twice: {first} ({before.origin}) and {second} ({origin})"
                )
    except InvalidConfig as error:
        problems.append(str(error))
    return settled


def describe_invalid_value(key: ConfigKey, given: Any, origin: Origin) -> str:
    """Say what is wrong with a value: the key, the value, where it came from, what is allowed."""
    return (
        f"{key.path} is {_shortened(given)} ({origin}), allowed is {values.describe_allowed(key)}"
    )


def _unknown(found: UnknownKey) -> str:
    name = _shortened(found.name).strip("'\"")
    where = f" ({found.origin})" if str(found.origin) != found.name else ""
    kind = "key" if isinstance(found.origin, FromFile) or "." in found.name else "variable"
    hint = f", the nearest that is known is {found.nearest}" if found.nearest else ""
    return f"there is no {kind} {name}{where}{hint}"


def _shortened(given: Any) -> str:
    text = repr(given)
    return text if len(text) <= SHOWN_LENGTH_MAX else f"{text[:SHOWN_LENGTH_MAX]}…"


def _node(given: Mapping[ConfigKey, Any], settled: Mapping[str, KeyAssignment]) -> NodeConfig:
    """Make the value that a node is started with, of values that are right one by one."""
    made: dict[str, Any] = {}
    problems = []
    for part, (config, _) in reversed(list(PARTS.items())):
        mine = {key.field: value for key, value in given.items() if key.part == part}
        try:
            made[part] = config(**mine, **({} if part else made))
        except InvalidConfig as error:
            problems.append(_with_key_names(str(error), part, settled))
            made[part] = config()
    if problems:
        raise ConfigurationError(problems)
    node: NodeConfig = made[""]
    return node


def _with_key_names(message: str, part: str, settled: Mapping[str, KeyAssignment]) -> str:
    """Name keys where a config names its fields, and say where those that were set came from."""
    named = {key.field: key for key in KEYS.values() if key.part == part}
    pattern = re.compile(rf"\b({'|'.join(named)})\b(?=,| is )")
    keys = [named[name] for name in pattern.findall(message)]
    origins = dict.fromkeys(str(settled[key.path].origin) for key in keys if key.path in settled)
    where = f" ({', '.join(origins)})" if origins else ""
    return pattern.sub(lambda match: named[match[1]].path, message) + where
