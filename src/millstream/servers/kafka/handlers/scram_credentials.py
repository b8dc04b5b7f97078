"""SCRAM credentials: described and changed, by Kafka's own tools among others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from millstream.broker.access.access import Access
from millstream.broker.access.credentials import ScramCredential, ScramMechanism
from millstream.broker.access.principal import check_name
from millstream.broker.access.sasl.scram import (
    HASH_SIZES,
    ITERATIONS_MAX,
    ITERATIONS_MIN,
    SALT_SIZE_MAX,
    credential_of,
)
from millstream.errors import InvalidRequest, MillstreamError
from millstream.protocols.kafka.error_codes import ErrorCode
from millstream.protocols.kafka.errors import code_of
from millstream.protocols.kafka.messages.scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsRequestDeletion,
    AlterUserScramCredentialsRequestUpsertion,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResponseResult,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResponseCredential,
    DescribeUserScramCredentialsResponseResult,
)
from millstream.servers.kafka.request_context import RequestContext

NO_LOGINS = "this node has no logins: set access.enabled"

MECHANISMS: Mapping[int, ScramMechanism] = {1: ScramMechanism.SHA_256, 2: ScramMechanism.SHA_512}
"""Kafka's numbers."""

_NUMBERS = {mechanism: number for number, mechanism in MECHANISMS.items()}

_Change = AlterUserScramCredentialsRequestDeletion | AlterUserScramCredentialsRequestUpsertion


def describe_user_scram_credentials(
    request: DescribeUserScramCredentialsRequest, context: RequestContext
) -> DescribeUserScramCredentialsResponse:
    """Return which users have a password, and for which mechanisms."""
    access = context.access
    if access is None:
        return DescribeUserScramCredentialsResponse(
            error_code=ErrorCode.SECURITY_DISABLED, error_message=NO_LOGINS
        )
    if (refusal := context.cluster_refusal()) is not None:
        return DescribeUserScramCredentialsResponse(
            error_code=code_of(refusal), error_message=str(refusal)
        )
    names = [user.name for user in request.users or ()]
    counts = Counter(names)
    return DescribeUserScramCredentialsResponse(
        throttle_time_ms=context.throttle_ms,
        results=tuple(
            _duplicate(name) if counts[name] > 1 else _described(access, name)
            for name in dict.fromkeys(names or access.users())
        ),
    )


def _duplicate(name: str) -> DescribeUserScramCredentialsResponseResult:
    return DescribeUserScramCredentialsResponseResult(
        user=name,
        error_code=ErrorCode.DUPLICATE_RESOURCE,
        error_message="the user is named more than once",
    )


def _described(access: Access, name: str) -> DescribeUserScramCredentialsResponseResult:
    credentials = access.scram_of(name)
    if not credentials:
        return DescribeUserScramCredentialsResponseResult(
            user=name,
            error_code=ErrorCode.RESOURCE_NOT_FOUND,
            error_message="the user has no SCRAM credentials",
        )
    return DescribeUserScramCredentialsResponseResult(
        user=name,
        credential_infos=tuple(
            DescribeUserScramCredentialsResponseCredential(
                mechanism=_NUMBERS[mechanism], iterations=credential.iterations
            )
            for mechanism, credential in credentials.items()
        ),
    )


async def alter_user_scram_credentials(
    request: AlterUserScramCredentialsRequest, context: RequestContext
) -> AlterUserScramCredentialsResponse:
    """Change the passwords of users, each user on its own."""
    changes: dict[str, list[_Change]] = {}
    both: tuple[_Change, ...] = (*request.deletions, *request.upsertions)
    for change in both:
        changes.setdefault(change.name, []).append(change)
    results = []
    for name, own in changes.items():
        code, message = await _alter_user(name, own, context)
        results.append(
            AlterUserScramCredentialsResponseResult(
                user=name, error_code=code, error_message=message
            )
        )
    return AlterUserScramCredentialsResponse(
        throttle_time_ms=context.throttle_ms, results=tuple(results)
    )


async def _alter_user(
    name: str, changes: list[_Change], context: RequestContext
) -> tuple[int, str | None]:
    """Change the credentials of one user: all that is wrong is found before the first change."""
    access = context.access
    if access is None:
        return ErrorCode.SECURITY_DISABLED, NO_LOGINS
    try:
        context.require_cluster()
        if (problem := _problem(name, changes, access)) is not None:
            return problem
        for change in changes:
            mechanism, credential = MECHANISMS[change.mechanism], _credential(change)
            if credential is None:
                await access.delete_scram(name, mechanism, by=context.caller)
            else:
                await access.put_scram(name, mechanism, credential, by=context.caller)
    except MillstreamError as error:
        return code_of(error), str(error)
    return ErrorCode.NONE, None


def _problem(name: str, changes: list[_Change], access: Access) -> tuple[int, str] | None:
    """Return what is wrong with the changes of a user; `None` if nothing is."""
    numbers = [change.mechanism for change in changes]
    if unknown := set(numbers) - set(MECHANISMS):
        text = f"mechanism must be one of {sorted(MECHANISMS)}, got {min(unknown)}"
        return ErrorCode.UNSUPPORTED_SASL_MECHANISM, text
    if len(set(numbers)) < len(numbers):
        return ErrorCode.DUPLICATE_RESOURCE, "a mechanism of the user is changed more than once"
    stored = access.scram_of(name)
    try:
        check_name(name)
        for change in changes:
            if _credential(change) is None and MECHANISMS[change.mechanism] not in stored:
                return ErrorCode.RESOURCE_NOT_FOUND, "the user has no such SCRAM credential"
    except InvalidRequest as error:
        return ErrorCode.UNACCEPTABLE_CREDENTIAL, str(error)
    return None


def _credential(change: _Change) -> ScramCredential | None:
    """Return the credential that is to be stored; `None` for a deletion."""
    if isinstance(change, AlterUserScramCredentialsRequestDeletion):
        return None
    mechanism = MECHANISMS[change.mechanism]
    for noun, size, least, most in (
        ("iterations", change.iterations, ITERATIONS_MIN, ITERATIONS_MAX),
        ("size of the salt", len(change.salt), 1, SALT_SIZE_MAX),
        ("size of the hash", len(change.salted_password), *(HASH_SIZES[mechanism],) * 2),
    ):
        if not least <= size <= most:
            raise InvalidRequest(f"{noun} must be between {least} and {most}, got {size}")
    return credential_of(
        mechanism,
        bytes(change.salted_password),
        salt=bytes(change.salt),
        iterations=change.iterations,
    )
