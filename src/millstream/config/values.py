"""Parses and formats the values of keys.

`parse_value` takes a value from a file (a number, a boolean or text), or from a variable or a flag,
which is always text. `toml_value` is its inverse.
"""

from __future__ import annotations

import enum
from typing import Any

from millstream.config.cpus import CPUS_WORDS, format_cpus, parse_cpus
from millstream.config.keys import ConfigKey, ConfigKeyType
from millstream.config.principal_rules import PRINCIPAL_RULES_WORDS, parse_principal_rules
from millstream.config.schema import (
    ALGORITHMS_WORDS,
    CLUSTER_NAME_WORDS,
    ENDPOINT_WORDS,
    HOSTS_WORDS,
    LABEL_WORDS,
    MECHANISMS_WORDS,
    NETWORKS_WORDS,
    ORIGINS_WORDS,
    SERVER_URLS_WORDS,
    SERVERS_WORDS,
    URL_WORDS,
    USERS_WORDS,
    Endpoint,
    JwtAlgorithm,
    SaslMechanism,
    is_cluster_name,
    is_host_pattern,
    is_label,
    is_network,
    is_origin_pattern,
    is_server_name,
    is_server_url,
    is_url,
    is_user_name,
    parse_endpoint,
)
from millstream.config.units import (
    BINARY_UNITS,
    BYTE_UNITS,
    NO_UNITS,
    TIME_UNITS,
    quantity,
    with_unit,
)
from millstream.errors import InvalidConfig

NONE = "none"
"""Stands for no limit, or no value: TOML has no null."""

PATH_LENGTH_MAX = 4096
"""The longest path that the kernel accepts."""

_SWITCHES = {
    **dict.fromkeys(("true", "yes", "on", "1"), True),
    **dict.fromkeys(("false", "no", "off", "0"), False),
}
_READ_UNITS = {
    ConfigKeyType.COUNT: NO_UNITS,
    ConfigKeyType.BYTES: BYTE_UNITS,
    ConfigKeyType.TIME: TIME_UNITS,
}
_SHOWN_UNITS = {
    ConfigKeyType.COUNT: NO_UNITS,
    ConfigKeyType.BYTES: BINARY_UNITS,
    ConfigKeyType.TIME: TIME_UNITS,
}


_LISTS = (
    ConfigKeyType.HOSTS,
    ConfigKeyType.ORIGINS,
    ConfigKeyType.SERVER_URLS,
    ConfigKeyType.USERS,
    ConfigKeyType.MECHANISMS,
    ConfigKeyType.ALGORITHMS,
    ConfigKeyType.SERVERS,
    ConfigKeyType.NETWORKS,
)


def parse_value(key: ConfigKey, given: Any) -> Any:
    """Return the value of a key; raises `ValueError` if it is not allowed."""
    if key.is_optional and isinstance(given, str) and given.strip().lower() == NONE:
        return None
    return _READERS[key.kind](key, given)


def _read_number(key: ConfigKey, given: Any) -> int:
    if isinstance(given, str):
        given = quantity(given, _READ_UNITS[key.kind])
    assert key.limits is not None, f"{key.path} has limits"
    least, most = key.limits
    is_number = isinstance(given, int) and not isinstance(given, bool)
    if not is_number or not least <= given <= most:
        raise ValueError("not a whole number within the limits")
    return int(given)


def _read_ratio(_: ConfigKey, given: Any) -> float:
    is_number = isinstance(given, str | int | float) and not isinstance(given, bool)
    if not is_number or not 0 <= float(given) <= 1:
        raise ValueError("not a number from 0 to 1")
    return float(given)


def _read_switch(_: ConfigKey, given: Any) -> bool:
    switch = _SWITCHES.get(given.strip().lower()) if isinstance(given, str) else given
    if switch is not True and switch is not False:
        raise ValueError("not a boolean")
    return switch


def _read_choice(key: ConfigKey, given: Any) -> enum.Enum:
    return type(key.choices[0])(given.strip() if isinstance(given, str) else given)


def _read_endpoint(key: ConfigKey, given: Any) -> Any:
    if not isinstance(given, str) or not given.isprintable():
        raise ValueError("not printable text")
    try:
        return parse_endpoint(given.strip(), name=key.path)
    except InvalidConfig as error:
        raise ValueError(str(error)) from error


def _read_path(_: ConfigKey, given: Any) -> str:
    if not isinstance(given, str) or not given or "\0" in given or len(given) > PATH_LENGTH_MAX:
        raise ValueError("not a path")
    given.encode()  # Raises for lone surrogates, which neither a file nor the log can hold.
    return given


def _read_url(_: ConfigKey, given: Any) -> str:
    if not is_url(given):
        raise ValueError("not a URL")
    return str(given)


def _read_label(_: ConfigKey, given: Any) -> str:
    if not is_label(given):
        raise ValueError("not a label")
    return str(given)


def _read_hosts(_: ConfigKey, given: Any) -> tuple[str, ...]:
    hosts = _texts(given)
    if not all(map(is_host_pattern, hosts)):
        raise ValueError("not host names")
    return hosts


def _read_origins(_: ConfigKey, given: Any) -> tuple[str, ...]:
    origins = _texts(given)
    if not all(map(is_origin_pattern, origins)):
        raise ValueError("not origins")
    return origins


def _read_cluster_name(_: ConfigKey, given: Any) -> str:
    if not is_cluster_name(given):
        raise ValueError("not a name of a cluster")
    return str(given)


def _read_server_urls(_: ConfigKey, given: Any) -> tuple[str, ...]:
    urls = _texts(given)
    if not all(map(is_server_url, urls)):
        raise ValueError("not URLs of servers")
    return urls


def _read_cpus(_: ConfigKey, given: Any) -> tuple[int, ...]:
    if isinstance(given, int) and not isinstance(given, bool):  # One processor, of a file.
        given = str(given)
    text = given.strip() if isinstance(given, str) else "?"
    return () if not text or text.lower() == NONE else parse_cpus(text)


def _read_principal_rules(_: ConfigKey, given: Any) -> str:
    text = given if isinstance(given, str) else ""  # Which is not a rule.
    try:
        parse_principal_rules(text)
    except InvalidConfig as error:
        raise ValueError(str(error)) from error
    return text


def _read_users(_: ConfigKey, given: Any) -> tuple[str, ...]:
    users = _split(given)
    if not all(map(is_user_name, users)):
        raise ValueError("not names of users")
    return users


def _read_mechanisms(_: ConfigKey, given: Any) -> tuple[SaslMechanism, ...]:
    return tuple(SaslMechanism(name.upper()) for name in _split(given))


def _read_algorithms(_: ConfigKey, given: Any) -> tuple[JwtAlgorithm, ...]:
    return tuple(JwtAlgorithm(name.upper()) for name in _split(given))


def _read_servers(_: ConfigKey, given: Any) -> tuple[str, ...]:
    servers = _texts(given)
    if not all(map(is_server_name, servers)):
        raise ValueError("not hosts")
    return servers


def _read_networks(_: ConfigKey, given: Any) -> tuple[str, ...]:
    networks = _texts(given)
    if not all(map(is_network, networks)):
        raise ValueError("not networks")
    return networks


def _texts(given: Any) -> tuple[str, ...]:
    """Return a list of texts, in lower case."""
    return tuple(text.lower() for text in _split(given))


def _split(given: Any) -> tuple[str, ...]:
    """Return a list of texts, from an array of a file or from text with commas."""
    if isinstance(given, str):
        text = given.strip()
        given = [] if text.lower() == NONE or not text else text.split(",")
    if not isinstance(given, list) or not all(isinstance(text, str) for text in given):
        raise ValueError("not a list of texts")
    return tuple(text.strip() for text in given)


_READERS = {
    ConfigKeyType.COUNT: _read_number,
    ConfigKeyType.BYTES: _read_number,
    ConfigKeyType.TIME: _read_number,
    ConfigKeyType.RATIO: _read_ratio,
    ConfigKeyType.SWITCH: _read_switch,
    ConfigKeyType.CHOICE: _read_choice,
    ConfigKeyType.ENDPOINT: _read_endpoint,
    ConfigKeyType.PATH: _read_path,
    ConfigKeyType.URL: _read_url,
    ConfigKeyType.LABEL: _read_label,
    ConfigKeyType.HOSTS: _read_hosts,
    ConfigKeyType.ORIGINS: _read_origins,
    ConfigKeyType.CLUSTER_NAME: _read_cluster_name,
    ConfigKeyType.SERVER_URLS: _read_server_urls,
    ConfigKeyType.CPUS: _read_cpus,
    ConfigKeyType.PRINCIPAL_RULES: _read_principal_rules,
    ConfigKeyType.USERS: _read_users,
    ConfigKeyType.MECHANISMS: _read_mechanisms,
    ConfigKeyType.ALGORITHMS: _read_algorithms,
    ConfigKeyType.SERVERS: _read_servers,
    ConfigKeyType.NETWORKS: _read_networks,
}


_WORDS = {
    ConfigKeyType.RATIO: "a number from 0 to 1",
    ConfigKeyType.SWITCH: "true or false",
    ConfigKeyType.ENDPOINT: ENDPOINT_WORDS,
    ConfigKeyType.PATH: f"a path of at most {PATH_LENGTH_MAX} characters",
    ConfigKeyType.URL: URL_WORDS,
    ConfigKeyType.LABEL: LABEL_WORDS,
    ConfigKeyType.HOSTS: HOSTS_WORDS,
    ConfigKeyType.ORIGINS: ORIGINS_WORDS,
    ConfigKeyType.CLUSTER_NAME: CLUSTER_NAME_WORDS,
    ConfigKeyType.SERVER_URLS: SERVER_URLS_WORDS,
    ConfigKeyType.CPUS: f"{CPUS_WORDS}, or {NONE}",
    ConfigKeyType.PRINCIPAL_RULES: PRINCIPAL_RULES_WORDS,
    ConfigKeyType.USERS: USERS_WORDS,
    ConfigKeyType.MECHANISMS: MECHANISMS_WORDS,
    ConfigKeyType.ALGORITHMS: ALGORITHMS_WORDS,
    ConfigKeyType.SERVERS: SERVERS_WORDS,
    ConfigKeyType.NETWORKS: NETWORKS_WORDS,
}
"""The allowed values of kinds whose keys are all alike."""


def describe_allowed(key: ConfigKey) -> str:
    """Describe the allowed values of a key, to follow "must be"."""
    if key.kind is ConfigKeyType.CHOICE:
        words = "one of " + ", ".join(choice.value for choice in key.choices)
    else:
        words = _WORDS.get(key.kind) or _range(key)
    return words + f", or {NONE}" * key.is_optional


def _range(key: ConfigKey) -> str:
    assert key.limits is not None, f"{key.path} has limits"
    least, most = key.limits
    units = list(_READ_UNITS[key.kind])
    more = f" {units[0]} (or with a unit: {', '.join(units)})" if units else ""
    return f"between {least} and {most}{more}"


def json_value(value: Any) -> Any:
    """Return a value as JSON: a number, a boolean, text, a list or null."""
    if isinstance(value, tuple) and not isinstance(value, Endpoint):
        return [json_value(item) for item in value]
    if isinstance(value, enum.Enum):
        return value.value
    return value if value is None or isinstance(value, int | float | str) else str(value)


def display_value(key: ConfigKey, value: Any) -> str:
    """Format a value for people."""
    if value is None:
        return NONE
    if key.kind in _SHOWN_UNITS:
        return with_unit(value, _SHOWN_UNITS[key.kind])
    if isinstance(value, bool):
        return str(value).lower()
    if key.kind is ConfigKeyType.CPUS:
        return format_cpus(value) or NONE
    if key.kind in _LISTS:
        return ", ".join(json_value(value)) or NONE
    return str(json_value(value))


def toml_value(key: ConfigKey, value: Any) -> str:
    """Format a value for a TOML file, so that `parse_value` returns it."""
    text = display_value(key, value)
    is_bare = value is not None and (
        key.kind in (ConfigKeyType.SWITCH, ConfigKeyType.RATIO)
        or (key.kind in _SHOWN_UNITS and text.isdecimal())
    )
    return text if is_bare else toml_string(text)


def toml_string(text: str) -> str:
    """Return `text` as a TOML string, with everything escaped that is not printable."""
    return (
        '"' + "".join(c if c.isprintable() and c not in '"\\' else _escape(c) for c in text) + '"'
    )


def _escape(character: str) -> str:
    return f"\\{character}" if character in '"\\' else f"\\U{ord(character):08x}"
