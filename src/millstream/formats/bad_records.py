"""Handling of records whose values cannot be decoded, from the options of a reader.

Every process of a query reads these options, so this module does not import Arrow.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import NamedTuple

from millstream.errors import InvalidConfig

ON_BAD_RECORD = "onBadRecord"
DEAD_LETTER_TOPIC = "deadLetterTopic"
"""Options of a reader. Their names are not case-sensitive."""


class OnBadRecord(enum.Enum):
    """Action for a record whose value cannot be decoded."""

    FAIL = "fail"
    """Fail the query, with the record's position and the reason."""
    DEAD_LETTER = "deadLetter"
    """Write the record to the dead letter topic and leave it out of the query."""
    NULL = "null"
    """Keep the record, with null in its typed columns and the reason in `_error`."""


class BadRecords(NamedTuple):
    on_bad: OnBadRecord = OnBadRecord.FAIL
    topic: str | None = None
    """Dead letter topic."""


def bad_records_from(options: Mapping[str, str]) -> BadRecords:
    """Parse `onBadRecord` and `deadLetterTopic`; raises `InvalidConfig` for invalid ones."""
    given = {name.lower(): value for name, value in options.items()}
    word = given.get(ON_BAD_RECORD.lower(), OnBadRecord.FAIL.value)
    topic = given.get(DEAD_LETTER_TOPIC.lower())
    on_bad = {policy.value.lower(): policy for policy in OnBadRecord}.get(word.strip().lower())
    if on_bad is None:
        allowed = ", ".join(policy.value for policy in OnBadRecord)
        raise InvalidConfig(f"{ON_BAD_RECORD} must be one of {allowed}, got {word!r}")
    if (on_bad is OnBadRecord.DEAD_LETTER) != (topic is not None):
        raise InvalidConfig(
            f"{DEAD_LETTER_TOPIC} must be set if, and only if, {ON_BAD_RECORD} is"
            f" {OnBadRecord.DEAD_LETTER.value}; got {ON_BAD_RECORD} {on_bad.value} and"
            f" {DEAD_LETTER_TOPIC} {topic!r}"
        )
    return BadRecords(on_bad, topic)
