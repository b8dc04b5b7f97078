"""The log engine: append, commit, read, decode, encode, open, recover."""

from __future__ import annotations

from subjects.log.append import APPEND
from subjects.log.commit import GROUP_COMMIT, LONE_APPEND
from subjects.log.decode import DECODE
from subjects.log.encode import ENCODE
from subjects.log.opening import OPENING
from subjects.log.partitions import PARTITIONS
from subjects.log.read import READ_1_MB, READ_16_KB
from subjects.log.recovery import RECOVERY_1_KB, RECOVERY_16_KB

EXPERIMENTS = (
    APPEND,
    GROUP_COMMIT,
    LONE_APPEND,
    READ_1_MB,
    READ_16_KB,
    DECODE,
    ENCODE,
    OPENING,
    RECOVERY_16_KB,
    RECOVERY_1_KB,
    PARTITIONS,
)
