"""Schemas by id, from a schema registry with the REST interface of Confluent's.

An id stands for one schema forever, so each is asked for once. That an id does not exist is
remembered for a short time only. A registry that does not answer is never taken for one that does
not have the schema: that is `Unavailable`, and the same call may succeed later.
"""

from __future__ import annotations

import asyncio
import base64
import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from typing import TypeVar
from urllib.parse import quote, urlsplit

import msgspec

from millstream.errors import InvalidConfig, InvalidRecord, Unavailable
from millstream.http1.outbound import OutboundClient
from millstream.http1.registered_schema import (
    CREDENTIALS_VARIABLE,
    RegisteredSchema,
    SchemaRegistryConfig,
)

SCHEMAS_MAX = 10_000
"""Schemas that are remembered. Above that, the one found first is asked for again."""

UNKNOWN_SECONDS = 30.0
"""For how long it is remembered that an id does not exist."""

REFERENCES_MAX = 100
"""Schemas that one schema may use."""

SCHEMA_SIZE_MAX = 4 * 1024 * 1024
"""Bytes of an answer."""

SECONDS_MAX = 10.0
"""Time for finding a schema."""

RETRY_SECONDS = 0.25

T = TypeVar("T")

_NO_SUCH_SCHEMA = 40403
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


class UnknownSchema(InvalidRecord):
    """A value has the id of a schema that the registry does not have."""


class _Reference(msgspec.Struct):
    name: str
    subject: str
    version: int


class _Answer(msgspec.Struct, rename="camel"):
    schema: str
    schema_type: str = "AVRO"
    references: list[_Reference] | None = None


class _Refusal(msgspec.Struct):
    error_code: int = 0
    message: str = ""


class SchemaRegistry:
    """Finds schemas, and remembers them. Belongs to one event loop."""

    def __init__(
        self,
        config: SchemaRegistryConfig,
        *,
        environment: Mapping[str, str] | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Check the address; raises `InvalidConfig`. Nothing is sent."""
        self._url = config.url.rstrip("/")
        self._credentials_file = config.credentials_file
        self._environment = os.environ if environment is None else environment
        self._monotonic = monotonic
        parts = urlsplit(self._url)
        self._outbound = OutboundClient(
            allowed_hosts=(parts.netloc,),
            allowed_networks=config.allowed_networks,
            ca_file=config.ca_file,
            is_plain_allowed=True,
        )
        self._outbound.check(self._url)
        if parts.scheme == "http" and parts.hostname not in _LOOPBACK and self._has_credentials:
            raise InvalidConfig(
                f"address {self._url!r} of the schema registry must begin with https://:"
                " credentials are not sent without TLS, except to this machine"
            )
        self._found: dict[int, RegisteredSchema] = {}
        self._unknown: dict[int, float] = {}
        self._asking: dict[int, asyncio.Task[RegisteredSchema]] = {}

    @property
    def _has_credentials(self) -> bool:
        return bool(self._credentials_file or self._environment.get(CREDENTIALS_VARIABLE))

    def known(self, schema_id: int) -> RegisteredSchema | None:
        """Return a schema if it is remembered; raises `UnknownSchema` if it does not exist."""
        if (found := self._found.get(schema_id)) is not None:
            return found
        unknown_until = self._unknown.get(schema_id)
        if unknown_until is not None and self._monotonic() < unknown_until:
            raise _unknown(schema_id)
        return None

    async def find(self, schema_id: int) -> RegisteredSchema:
        """Return a schema; raises `UnknownSchema`, or `Unavailable` if nobody answers."""
        if (found := self.known(schema_id)) is not None:
            return found
        asking = self._asking.get(schema_id)
        if asking is None:
            asking = self._asking[schema_id] = asyncio.ensure_future(self._ask(schema_id))
            asking.add_done_callback(lambda _: self._asking.pop(schema_id, None))
        return await asyncio.shield(asking)

    async def _ask(self, schema_id: int) -> RegisteredSchema:
        try:
            answer = await self._get(f"/schemas/ids/{schema_id}", schema_id)
        except UnknownSchema:
            _remember(self._unknown, schema_id, self._monotonic() + UNKNOWN_SECONDS)
            raise
        references: dict[tuple[str, int], tuple[str, str]] = {}
        await self._add_references(answer, schema_id, references)
        found = RegisteredSchema(answer.schema_type, answer.schema, tuple(references.values()))
        _remember(self._found, schema_id, found)
        return found

    async def _add_references(
        self, answer: _Answer, schema_id: int, found: dict[tuple[str, int], tuple[str, str]]
    ) -> None:
        """Add the schemas that a schema uses, each after those that it uses itself."""
        for reference in answer.references or ():
            key = (reference.subject, reference.version)
            if key in found:
                continue
            if len(found) >= REFERENCES_MAX:
                raise Unavailable(
                    f"schema id {schema_id} uses more than {REFERENCES_MAX} other schemas"
                )
            subject = quote(reference.subject, safe="")
            used = await self._get(f"/subjects/{subject}/versions/{reference.version}", schema_id)
            await self._add_references(used, schema_id, found)
            found[key] = (reference.name, used.schema)

    async def _get(self, path: str, schema_id: int) -> _Answer:
        answer = await self._outbound.ask(
            self._url + path,
            size_max=SCHEMA_SIZE_MAX,
            seconds_max=SECONDS_MAX,
            authorization=self._authorization(),
        )
        if answer.status == HTTPStatus.OK:
            return _decode(answer.body, self._url)
        if answer.status == HTTPStatus.NOT_FOUND and _error_code(answer.body) == _NO_SUCH_SCHEMA:
            raise _unknown(schema_id)
        # Any other 404 comes from a server that is no registry, or from another path of it.
        raise Unavailable(f"schema registry {self._url}{path}: {answer.refusal}")

    def _authorization(self) -> str | None:
        """Return the header, from the file each time: credentials are changed there."""
        if self._credentials_file is None:
            text = self._environment.get(CREDENTIALS_VARIABLE, "").strip()
            if not text:
                return None
        else:
            try:
                with open(self._credentials_file, encoding="utf-8") as file:
                    text = file.readline().strip()
            except (OSError, UnicodeDecodeError) as error:
                raise Unavailable(
                    f"credentials of the schema registry cannot be read: {error}"
                ) from error
        if text.startswith("Bearer ") and text.isascii() and text.isprintable():
            return text
        if ":" in text:
            return f"Basic {base64.b64encode(text.encode()).decode()}"
        raise Unavailable(
            "credentials of the schema registry must be user:password or Bearer <token>, in one"
            " line"
        )


class BlockingRegistry:
    """A registry for code without an event loop, such as the tasks of a query."""

    def __init__(self, config: SchemaRegistryConfig, *, seconds_max: float = SECONDS_MAX) -> None:
        self._registry = SchemaRegistry(config)
        self._seconds_max = seconds_max

    def find(self, schema_ids: Sequence[int]) -> Mapping[int, RegisteredSchema]:
        """Return the schemas that exist; raises `Unavailable` if the registry does not answer."""
        found: dict[int, RegisteredSchema] = {}
        wanted = []
        for schema_id in schema_ids:
            try:
                known = self._registry.known(schema_id)
            except UnknownSchema:
                continue
            if known is None:
                wanted.append(schema_id)
            else:
                found[schema_id] = known
        if wanted:
            # In a thread of its own: the caller may have an event loop that runs, as notebooks do.
            with ThreadPoolExecutor(1) as pool:
                found |= pool.submit(asyncio.run, self._ask(wanted)).result()
        return found

    async def _ask(self, schema_ids: Sequence[int]) -> dict[int, RegisteredSchema]:
        deadline = time.monotonic() + self._seconds_max
        found = {}
        for schema_id in schema_ids:
            while True:
                try:
                    found[schema_id] = await self._registry.find(schema_id)
                except UnknownSchema:
                    pass
                except Unavailable:
                    if time.monotonic() + RETRY_SECONDS > deadline:
                        raise
                    await asyncio.sleep(RETRY_SECONDS)
                    continue
                break
        return found


def _unknown(schema_id: int) -> UnknownSchema:
    return UnknownSchema(f"schema id {schema_id} is not in the schema registry")


def _remember(memory: dict[int, T], schema_id: int, value: T) -> None:
    while len(memory) >= SCHEMAS_MAX:
        del memory[next(iter(memory))]
    memory[schema_id] = value


def _decode(body: bytes, url: str) -> _Answer:
    try:
        return msgspec.json.decode(body, type=_Answer)
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise Unavailable(f"schema registry {url}: the answer has no schema: {error}") from None


def _error_code(body: bytes) -> int:
    try:
        return msgspec.json.decode(body, type=_Refusal).error_code
    except (msgspec.MsgspecError, UnicodeError):
        return 0
