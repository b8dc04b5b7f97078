"""Rules that map the distinguished name of a certificate to the name of a user.

The form is that of Kafka's `ssl.principal.mapping.rules`: rules separated by commas, of which the
first that matches the complete name applies.

    DEFAULT                             the name as it is
    RULE:<pattern>/<replacement>/       `$1` stands for the first group, up to `$9`
    RULE:<pattern>/<replacement>/L      the same in lower case, or with U in upper case

A slash or a backslash in a pattern or a replacement is written with a backslash before it. Names
come from certificates, so they are matched by an engine without backtracking.
"""

from __future__ import annotations

import functools
import re
from typing import Any, Final, NamedTuple

from millstream.errors import InvalidConfig

DEFAULT_RULES: Final = "DEFAULT"
RULES_LENGTH_MAX: Final = 8_192
NAME_LENGTH_MAX: Final = 4_096
"""Characters of a distinguished name. Those of public authorities have less than 300."""

PRINCIPAL_RULES_WORDS = (
    "rules separated by commas, each DEFAULT or RULE:PATTERN/REPLACEMENT/ with L, U or nothing"
    f" after it, of at most {RULES_LENGTH_MAX} characters"
)

_PATTERN_MEMORY_MAX = 256 * 1024
# Not a pattern of a user, and without nested repetition.
_RULE = re.compile(
    r"\s*(?:(?P<default>DEFAULT)"
    r"|RULE:(?P<pattern>(?:\\.|[^\\/])*)/(?P<replacement>(?:\\.|[^\\/])*)/(?P<case>[LU]?))"
    r"\s*(?P<end>,|\Z)",
    re.DOTALL,
)
_PLACE = re.compile(r"\\(.)|\$([1-9])", re.DOTALL)


class PrincipalRule(NamedTuple):
    """One rule."""

    pattern: Any
    """Compiled by RE2; `None` for a rule that takes the name as it is."""
    replacement: str = ""
    case: str = ""

    def apply(self, name: str) -> str | None:
        """Return the name of the user; `None` if the rule does not match."""
        if self.pattern is None:
            return name
        found = self.pattern.fullmatch(name)
        if found is None:
            return None
        user = _PLACE.sub(lambda place: place[1] or found[int(place[2])] or "", self.replacement)
        return {"L": user.lower(), "U": user.upper()}.get(self.case, user)


def map_principal(rules: str, name: str) -> str | None:
    """Return the name of the user with a distinguished name; `None` if it is nobody's.

    `rules` must be valid.
    """
    if len(name) > NAME_LENGTH_MAX:
        return None
    users = (rule.apply(name) for rule in parse_principal_rules(rules))
    return next((user for user in users if user is not None), None) or None


@functools.lru_cache(maxsize=16)
def parse_principal_rules(text: str) -> tuple[PrincipalRule, ...]:
    """Parse rules; raise `InvalidConfig` that names what is wrong."""
    if len(text) > RULES_LENGTH_MAX:
        raise InvalidConfig(
            f"rules must have at most {RULES_LENGTH_MAX} characters, got {len(text)}"
        )
    rules: list[PrincipalRule] = []
    start = 0
    while True:
        found = _RULE.match(text, start)
        if found is None:
            raise InvalidConfig(
                "a rule must be DEFAULT or RULE:<pattern>/<replacement>/[L|U], got"
                f" {text[start : start + 100]!r}"
            )
        rules.append(_rule(found))
        start = found.end()
        if found["end"] != ",":
            return tuple(rules)


def _rule(found: re.Match[str]) -> PrincipalRule:
    if found["default"]:
        return PrincipalRule(None)
    pattern, replacement = found["pattern"].replace("\\/", "/"), found["replacement"]
    compiled = _compile(pattern)
    highest = max((int(place[2]) for place in _PLACE.finditer(replacement) if place[2]), default=0)
    if highest > compiled.groups:
        raise InvalidConfig(
            f"${highest} in {replacement!r} must be at most ${compiled.groups}, the last group of"
            f" {pattern!r}"
        )
    return PrincipalRule(compiled, replacement, found["case"])


def _compile(pattern: str) -> Any:
    import re2  # noqa: PLC0415 - most nodes have no rules.

    options = re2.Options()
    options.max_mem = _PATTERN_MEMORY_MAX
    options.log_errors = False
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        reason = error.args[0] if error.args else "it cannot be compiled"
        if isinstance(reason, bytes):
            reason = reason.decode(errors="replace")
        raise InvalidConfig(f"invalid pattern {pattern[:100]!r}: {reason}") from None
