"""The document at `/openapi.json` is correct and complete."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from http import HTTPStatus
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from millstream.config.schema import BrokerConfig
from millstream.protocols.http.strict_json import decode
from millstream.servers.http.app import OPERATIONS, make_app
from millstream.servers.http.console.console_files import console_pages
from millstream.servers.http.handlers.health import Health, health_operations
from millstream.servers.http.routing.openapi import document
from millstream.servers.http.routing.operations import HttpOperation, Media
from millstream.testing import ManualClock
from millstream.testing.broker import running_broker
from tests.servers.http.calls import ask
from tests.servers.http.http_topic import HttpTopic

ROOT = Path(__file__).parents[4]
HEALTH = Health(is_started=True)
ALL: list[HttpOperation] = [*health_operations(lambda: HEALTH, lambda: ()), *OPERATIONS]
NAMES = [f"{one.method} {one.path}" for one in ALL]
ENDLESS = "text/event-stream"
"""Responses of this type end when the client disconnects, so the tests cannot wait for them."""

LEFT_OUT: tuple[str, ...] = ()
"""Operations, as `GET /v1/path`, with other endless responses."""


@pytest.fixture(scope="module")
def described() -> Any:
    return json.loads(msgspec.json.encode(document(ALL)))


@pytest.fixture(params=ALL, ids=NAMES)
def operation(request: pytest.FixtureRequest) -> HttpOperation:
    return request.param


def entry(described: Any, one: HttpOperation) -> Any:
    return described["paths"][one.path.replace(":path}", "}")][one.method.lower()]


# The document and the table.


def test_every_route_is_in_the_document_save_the_pages_of_the_console() -> None:
    streams = SimpleNamespace(end_waits=lambda: None)
    broker: Any = SimpleNamespace(clock=ManualClock(), streams=streams, quotas=None, access=None)
    app = make_app(lambda: HEALTH, lambda: (), broker)
    routes = {
        (method, path.template) for path in app.router.paths.values() for method in path.methods
    }
    listed = {(one.method, one.path) for one in [*ALL, *console_pages()]}
    listed.add(("GET", "/openapi.json"))
    implied = {("HEAD", path) for method, path in listed if method == "GET"}
    assert routes == listed | implied


def test_every_operation_has_an_entry_with_words_and_an_id_of_its_own(
    described: Any, operation: HttpOperation
) -> None:
    found = entry(described, operation)
    assert found["summary"]
    assert found["description"]
    ids = [one["operationId"] for path in described["paths"].values() for one in path.values()]
    assert ids.count(found["operationId"]) == 1
    answers = {int(status) for status in found["responses"]}
    assert {int(status) for status in operation.answers} <= answers
    assert {400, 500, 503} <= answers
    if operation.body is not None:
        assert {408, 413, 415} <= answers


def test_every_body_and_every_answer_has_an_example_that_is_one(operation: HttpOperation) -> None:
    if operation.body is not None and not isinstance(operation.body, Media):
        assert operation.example is not None
        decode(json.dumps(operation.example).encode(), operation.body)
    kind = next(iter(operation.answers.values()))
    if isinstance(kind, Media):
        assert kind.example is not None or kind.media_type == ENDLESS
    elif kind is not None:
        text = json.dumps(operation.answer_example).encode()
        again = msgspec.json.encode(msgspec.json.decode(text, type=kind))
        assert json.loads(again) == operation.answer_example


def test_every_field_that_is_declared_is_described(described: Any) -> None:
    references = re.findall(r'"#/components/(\w+)/([\w-]+)"', json.dumps(described))
    assert references
    for kind, name in references:
        assert name in described["components"][kind]


def test_an_operation_says_what_its_path_takes(described: Any, operation: HttpOperation) -> None:
    names = re.findall(r"{(\w+)", operation.path)
    found = [
        one["name"] for one in entry(described, operation)["parameters"] if one["in"] == "path"
    ]
    assert found == names


# The document and the server.


def test_a_path_that_is_there_names_the_methods_that_it_knows(tmp_path: Path) -> None:
    with running_broker(tmp_path) as running:
        topic = HttpTopic(running)
        answer = topic.ask("PATCH", "/records")
        assert answer.status == HTTPStatus.METHOD_NOT_ALLOWED
        allowed = {word.strip() for word in answer.headers["allow"].split(",")}
        assert allowed == {"GET", "HEAD", "POST", "DELETE"}
        head = topic.ask("HEAD", "/records")
        assert (head.status, head.body) == (200, b"")


def is_endless(one: HttpOperation) -> bool:
    kinds = [kind.media_type for kind in one.answers.values() if isinstance(kind, Media)]
    return ENDLESS in kinds or f"{one.method} {one.path}" in LEFT_OUT


def test_schemathesis_finds_nothing_wrong(tmp_path: Path) -> None:
    """Takes some twenty seconds: it calls every operation in hundreds of ways."""
    left_out = [
        word
        for one in ALL
        if is_endless(one)
        for word in ("--exclude-name", f"{one.method} {one.path.replace(':path}', '}')}")
    ]
    config = BrokerConfig(partitions_max=1_000)
    with running_broker(tmp_path / "node", broker=config) as running:
        ask(running.url, "PUT", "/v1/topics/orders")  # Which the examples speak of.
        result = subprocess.run(
            [
                *(sys.executable, "-m", "schemathesis.cli", "run", f"{running.url}/openapi.json"),
                *("--checks", "all", "--exclude-checks", "positive_data_acceptance"),
                *("--generation-deterministic", "--max-examples", "20"),
                *(
                    "--no-color",
                    "--continue-on-failure",
                    "--request-timeout",
                    "30",
                    "--warnings",
                    "off",
                    *left_out,
                ),
            ],
            cwd=tmp_path,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]),
                "SCHEMATHESIS_HOOKS": "tests.servers.http.schemathesis_hooks",
                "PYTHONWARNINGS": "ignore",
            },
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
    assert result.returncode == 0, result.stdout[-6_000:] + result.stderr[-2_000:]
    assert "No issues found" in result.stdout
