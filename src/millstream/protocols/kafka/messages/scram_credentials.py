"""SCRAM credentials of users (KIP-554)."""

from __future__ import annotations

from millstream.protocols.kafka.codec.message import Versions, message, struct, wire
from millstream.protocols.kafka.codec.primitives import (
    ARRAY,
    BYTES,
    INT8,
    INT16,
    INT32,
    NULLABLE_ARRAY,
    NULLABLE_STRING,
    STRING,
)

DESCRIBE_USER_SCRAM_CREDENTIALS = Versions(first=0, last=0, flexible=0)
ALTER_USER_SCRAM_CREDENTIALS = Versions(first=0, last=0, flexible=0)


@struct
class DescribeUserScramCredentialsRequestUser:
    """A user to describe."""

    name: str = wire(STRING)


@message(DESCRIBE_USER_SCRAM_CREDENTIALS)
class DescribeUserScramCredentialsRequest:
    """Ask which SCRAM credentials users have; null or empty for all users."""

    users: tuple[DescribeUserScramCredentialsRequestUser, ...] | None = wire(
        NULLABLE_ARRAY(DescribeUserScramCredentialsRequestUser)
    )


@struct
class DescribeUserScramCredentialsResponseCredential:
    """A credential, without what proves a password."""

    mechanism: int = wire(INT8)
    iterations: int = wire(INT32)


@struct
class DescribeUserScramCredentialsResponseResult:
    """The credentials of one user."""

    user: str = wire(STRING)
    error_code: int = wire(INT16, default=0)
    error_message: str | None = wire(NULLABLE_STRING, default=None)
    credential_infos: tuple[DescribeUserScramCredentialsResponseCredential, ...] = wire(
        ARRAY(DescribeUserScramCredentialsResponseCredential), default=()
    )


@message(DESCRIBE_USER_SCRAM_CREDENTIALS)
class DescribeUserScramCredentialsResponse:
    """The credentials by user."""

    throttle_time_ms: int = wire(INT32, default=0)
    error_code: int = wire(INT16, default=0)
    error_message: str | None = wire(NULLABLE_STRING, default=None)
    results: tuple[DescribeUserScramCredentialsResponseResult, ...] = wire(
        ARRAY(DescribeUserScramCredentialsResponseResult), default=()
    )


@struct
class AlterUserScramCredentialsRequestDeletion:
    """A credential to delete."""

    name: str = wire(STRING)
    mechanism: int = wire(INT8)


@struct
class AlterUserScramCredentialsRequestUpsertion:
    """A credential to create or replace. The client has hashed the password."""

    name: str = wire(STRING)
    mechanism: int = wire(INT8)
    iterations: int = wire(INT32)
    salt: bytes = wire(BYTES)
    salted_password: bytes = wire(BYTES)


@message(ALTER_USER_SCRAM_CREDENTIALS)
class AlterUserScramCredentialsRequest:
    """Change the credentials of users."""

    deletions: tuple[AlterUserScramCredentialsRequestDeletion, ...] = wire(
        ARRAY(AlterUserScramCredentialsRequestDeletion)
    )
    upsertions: tuple[AlterUserScramCredentialsRequestUpsertion, ...] = wire(
        ARRAY(AlterUserScramCredentialsRequestUpsertion)
    )


@struct
class AlterUserScramCredentialsResponseResult:
    """What became of the changes of one user."""

    user: str = wire(STRING)
    error_code: int = wire(INT16, default=0)
    error_message: str | None = wire(NULLABLE_STRING, default=None)


@message(ALTER_USER_SCRAM_CREDENTIALS)
class AlterUserScramCredentialsResponse:
    """The results by user."""

    throttle_time_ms: int = wire(INT32, default=0)
    results: tuple[AlterUserScramCredentialsResponseResult, ...] = wire(
        ARRAY(AlterUserScramCredentialsResponseResult), default=()
    )
