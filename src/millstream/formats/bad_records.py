"""What becomes of records that cannot be read, as the options say.

Every process of a query reads these options, so nothing here needs Arrow.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import NamedTuple

from millstream.errors import InvalidConfig

ON_BAD_RECORD = "onBadRecord"
DEAD_LETTER_TOPIC = "deadLetterTopic"
"""Options of the Spark source. Their names are compared without regard to case."""


class OnBadRecord(enum.Enum):
    """What becomes of a record whose value cannot be read."""

    FAIL = "fail"
    """The query fails, with the record's place and what is wrong."""
    DEAD_LETTER = "deadLetter"
    """It goes to another topic, and not into the query."""
    NULL = "null"
    """It stays, its typed columns are null, and `_error` says why."""


class BadRecords(NamedTuple):
    """What becomes of records that cannot be read, and where they go."""

    on_bad: OnBadRecord = OnBadRecord.FAIL
    topic: str | None = None
    """Where dead letters go."""


def bad_records_from(options: Mapping[str, str]) -> BadRecords:
    """Read `onBadRecord` and `deadLetterTopic`; raises `InvalidConfig` where they do not fit."""
    given = {name.lower(): value for name, value in options.items()}
    word = given.get(ON_BAD_RECORD.lower(), OnBadRecord.FAIL.value)
    topic = given.get(DEAD_LETTER_TOPIC.lower())
    found = {one.value.lower(): one for one in OnBadRecord}.get(word.strip().lower())
    if found is None:
        allowed = ", ".join(one.value for one in OnBadRecord)
        raise InvalidConfig(f"{ON_BAD_RECORD} is {word!r}, allowed is {allowed}")
    if (found is OnBadRecord.DEAD_LETTER) != (topic is not None):
        raise InvalidConfig(
            f"{ON_BAD_RECORD} is {found.value} and {DEAD_LETTER_TOPIC} is {topic!r}: both are"
            f" needed for dead letters, and a topic for nothing else"
        )
    return BadRecords(found, topic)
