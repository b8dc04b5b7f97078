"""What the console may do is decided by the node, not by the page."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from millstream.config.keys import KEYS
from millstream.config.schema import ConsoleAccess, HttpConfig
from millstream.config.values import parse_value
from millstream.testing.broker import RunningBroker, running_broker
from tests.servers.http.calls import Answer, ask

CONSOLE = {"Millstream-Console": "1"}

WRITES = [
    ("POST", "/v1/topics/t/records", b'{"records": [{"value": 1}]}'),
    ("PUT", "/v1/topics/made", b"{}"),
    ("DELETE", "/v1/topics/t", None),
    ("DELETE", "/v1/topics/t/records", b'{"key": "k"}'),
    ("PUT", "/v1/groups/g/offsets", b'{"topic": "t", "to": "earliest"}'),
    ("PUT", "/v1/queues/q", b"{}"),
    ("POST", "/v1/queues/q/redrive", b"{}"),
    ("DELETE", "/v1/queues/q/dead_letters", None),
    ("PUT", "/v1/quotas", b'{"client_id": "c", "rates": {}}'),
]


@pytest.fixture(scope="module")
def reading(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    with running_broker(tmp_path_factory.mktemp("reading")) as running:
        yield running


@pytest.fixture(scope="module")
def writing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    config = HttpConfig(console=ConsoleAccess.WRITE)
    with running_broker(tmp_path_factory.mktemp("writing"), http_server=config) as running:
        yield running


def send(node: RunningBroker, method: str, path: str, body: bytes | None, **headers: str) -> Answer:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return ask(node.url, method, path, body, named)


@pytest.mark.parametrize(("method", "path", "body"), WRITES)
def test_a_console_that_reads_changes_nothing(
    reading: RunningBroker, method: str, path: str, body: bytes | None
) -> None:
    answer = ask(reading.url, method, path, body, CONSOLE)
    assert answer.status == 403
    assert "http.console = write" in answer.message
    assert ask(reading.url, "GET", "/v1/topics", None, CONSOLE).json["topics"] == []


@pytest.mark.parametrize(("method", "path", "body"), WRITES)
def test_a_console_that_writes_is_a_client_as_others(
    writing: RunningBroker, method: str, path: str, body: bytes | None
) -> None:
    assert ask(writing.url, method, path, body, CONSOLE).status != 403
    own = {**CONSOLE, "Origin": writing.url, "Sec-Fetch-Site": "same-origin"}
    assert ask(writing.url, method, path, body, own).status != 403


@pytest.mark.parametrize(("method", "path", "body"), WRITES)
@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
def test_a_page_of_another_site_cannot_act_through_a_console_that_writes(
    writing: RunningBroker, method: str, path: str, body: bytes | None, headers: dict[str, str]
) -> None:
    answer = ask(writing.url, method, path, body, {**CONSOLE, **headers})
    assert answer.status == 403
    assert "other sites" in answer.message


def test_the_page_is_told_what_it_may_do(reading: RunningBroker, writing: RunningBroker) -> None:
    assert ask(reading.url, "GET", "/v1/node").json["console"] == "read"
    assert ask(writing.url, "GET", "/v1/node").json["console"] == "write"


@pytest.mark.parametrize(
    ("given", "access"),
    [
        ("off", ConsoleAccess.OFF),
        ("read", ConsoleAccess.READ),
        (" write ", ConsoleAccess.WRITE),
        (True, ConsoleAccess.READ),
        (False, ConsoleAccess.OFF),
        ("true", ConsoleAccess.READ),
        ("false", ConsoleAccess.OFF),
        ("0", ConsoleAccess.OFF),
    ],
)
def test_old_values_of_the_setting_are_understood(given: object, access: ConsoleAccess) -> None:
    assert parse_value(KEYS["http.console"], given) is access
    if isinstance(given, bool):
        assert HttpConfig(console=given).console is access  # type: ignore[arg-type]
