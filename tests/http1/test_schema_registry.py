"""What is asked of a schema registry, how often, and what its answers are taken for."""

from __future__ import annotations

import asyncio
import base64
import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient

from millstream.errors import InvalidConfig, Unavailable
from millstream.http1.registered_schema import (
    CREDENTIALS_VARIABLE,
    RegisteredSchema,
    SchemaRegistryConfig,
)
from millstream.http1.schema_registry import BlockingRegistry, SchemaRegistry, UnknownSchema
from tests.registry import running_registry

LOOPBACK = ("127.0.0.0/8",)
UNKNOWN = (404, {"error_code": 40403, "message": "Schema not found"})


class FakeRegistry:
    """Answers that a real registry gives only when it is broken."""

    def __init__(self) -> None:
        self.answers: dict[str, list[tuple[int, Any]]] = {}
        self.asked: list[str] = []
        self.headers: list[str | None] = []
        self.url = ""


@pytest.fixture
def fake() -> Iterator[FakeRegistry]:
    registry = FakeRegistry()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            registry.asked.append(self.path)
            registry.headers.append(self.headers.get("Authorization"))
            answers = registry.answers.get(self.path, [UNKNOWN])
            status, body = answers[0] if len(answers) == 1 else answers.pop(0)
            text = body if isinstance(body, bytes) else json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        registry.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield registry
        server.shutdown()
        thread.join()


def config(fake: FakeRegistry, **changes: Any) -> SchemaRegistryConfig:
    return SchemaRegistryConfig(**{"url": fake.url, "allowed_networks": LOOPBACK} | changes)


def find(registry: SchemaRegistry, *schema_ids: int) -> list[RegisteredSchema]:
    async def all_at_once() -> list[RegisteredSchema]:
        return await asyncio.gather(*(registry.find(schema_id) for schema_id in schema_ids))

    return asyncio.run(all_at_once())


def test_a_schema_is_asked_for_once(fake):
    fake.answers["/schemas/ids/3"] = [(200, {"schema": '"int"'})]
    registry = SchemaRegistry(config(fake))
    assert find(registry, 3, 3) == [RegisteredSchema("AVRO", '"int"')] * 2
    assert find(registry, 3) == [RegisteredSchema("AVRO", '"int"')]
    assert fake.asked == ["/schemas/ids/3"]


def test_the_schemas_that_it_uses_come_with_it_in_the_order_in_which_they_are_needed(fake):
    def uses(*names: str) -> list[dict[str, object]]:
        return [{"name": name, "subject": f"{name}/s", "version": 2} for name in names]

    fake.answers = {
        "/schemas/ids/3": [
            (200, {"schema": "top", "schemaType": "PROTOBUF", "references": uses("b", "a")})
        ],
        "/subjects/b%2Fs/versions/2": [(200, {"schema": "B", "references": uses("a")})],
        "/subjects/a%2Fs/versions/2": [(200, {"schema": "A"})],
    }
    (found,) = find(SchemaRegistry(config(fake)), 3)
    assert found == RegisteredSchema("PROTOBUF", "top", (("a", "A"), ("b", "B")))


def test_an_unknown_id_is_asked_for_again_after_a_while(fake):
    now = [0.0]
    registry = SchemaRegistry(config(fake), monotonic=lambda: now[0])
    for _ in range(2):
        with pytest.raises(UnknownSchema, match="schema id 9 is not in the schema registry"):
            find(registry, 9)
    assert len(fake.asked) == 1
    now[0] = 31.0
    fake.answers["/schemas/ids/9"] = [(200, {"schema": '"int"'})]
    assert find(registry, 9) == [RegisteredSchema("AVRO", '"int"')]


@pytest.mark.parametrize(
    "answer",
    [
        (404, {"message": "no such page"}),
        (404, b"<html>"),
        (401, {}),
        (500, {"error_code": 40403}),
        (302, {}),
        (200, {"version": 1}),
        (200, b"\xff"),
        (200, b"["),
    ],
)
def test_an_answer_of_anything_else_is_not_taken_for_an_unknown_id(fake, answer):
    fake.answers["/schemas/ids/9"] = [answer, (200, {"schema": '"int"'})]
    registry = SchemaRegistry(config(fake))
    with pytest.raises(Unavailable, match=r"127\.0\.0\.1"):
        find(registry, 9)
    assert find(registry, 9) == [RegisteredSchema("AVRO", '"int"')], "it is not remembered"


def test_a_registry_that_is_down_is_named_and_may_come_back(fake):
    registry = BlockingRegistry(
        SchemaRegistryConfig(url="http://127.0.0.1:1", allowed_networks=LOOPBACK), seconds_max=0.5
    )
    with pytest.raises(Unavailable, match=r"127\.0\.0\.1:1"):
        registry.find([3])
    fake.answers["/schemas/ids/3"] = [(503, {}), (200, {"schema": '"int"'})]
    coming = BlockingRegistry(config(fake))
    for _ in range(2):
        assert coming.find([3, 9]) == {3: RegisteredSchema("AVRO", '"int"')}
    assert fake.asked == ["/schemas/ids/3", "/schemas/ids/3", "/schemas/ids/9"]


def test_credentials_come_from_a_file_or_a_variable_and_are_read_again(fake, tmp_path: Path):
    fake.answers["/schemas/ids/3"] = [(401, {}), (200, {"schema": '"int"'})]
    file = tmp_path / "credentials"
    file.write_text("Bearer t0ken\n")
    registry = SchemaRegistry(config(fake, credentials_file=str(file)), environment={})
    with pytest.raises(Unavailable, match="status 401"):
        find(registry, 3)
    file.write_text("ada:s3cret\n")
    find(registry, 3)
    by_variable = SchemaRegistry(config(fake), environment={CREDENTIALS_VARIABLE: "ada:s3cret"})
    find(by_variable, 3)
    basic = "Basic " + base64.b64encode(b"ada:s3cret").decode()
    assert fake.headers == ["Bearer t0ken", basic, basic]


@pytest.mark.parametrize("text", ["", "opaque", "Bearer a\x00b"])
def test_credentials_of_no_known_form_are_refused_and_not_shown(fake, tmp_path: Path, text):
    file = tmp_path / "credentials"
    file.write_text(text)
    registry = SchemaRegistry(config(fake, credentials_file=str(file)), environment={})
    with pytest.raises(Unavailable, match="must be user:password or Bearer <token>") as refused:
        find(registry, 3)
    assert not text or text not in str(refused.value)
    assert not fake.asked


def test_credentials_are_not_sent_without_tls_to_other_machines():
    with pytest.raises(InvalidConfig, match="must begin with https://"):
        SchemaRegistry(
            SchemaRegistryConfig(url="http://registry.example:8081"),
            environment={CREDENTIALS_VARIABLE: "ada:s3cret"},
        )


def test_an_address_that_is_not_public_has_to_be_allowed(fake):
    registry = SchemaRegistry(config(fake, allowed_networks=()))
    with pytest.raises(InvalidConfig, match="not public"):
        find(registry, 3)
    assert not fake.asked


@pytest.mark.parametrize(
    "url", ["registry:8081", "ftp://registry", "http://a:b@registry", "http://r/ x"]
)
def test_an_address_that_is_none_is_refused(url):
    with pytest.raises(InvalidConfig):
        SchemaRegistry(SchemaRegistryConfig(url=url))


def test_several_loops_can_ask_one_after_the_other(fake):
    fake.answers["/schemas/ids/3"] = [(200, {"schema": '"int"'})]
    fake.answers["/schemas/ids/4"] = [(200, {"schema": '"int"'})]
    registry = BlockingRegistry(config(fake))

    async def within_a_loop() -> None:
        registry.find([3])

    asyncio.run(within_a_loop())
    assert registry.find([4, 3]).keys() == {3, 4}
    assert fake.asked == ["/schemas/ids/3", "/schemas/ids/4"]


@pytest.mark.slow
def test_a_real_registry_answers_as_expected(tmp_path: Path):
    text = '{"type":"record","name":"r","fields":[{"name":"a","type":"long"}]}'
    with running_registry(tmp_path) as url, SchemaRegistryClient({"url": url}) as client:
        schema_id = client.register_schema("orders-value", Schema(text, "AVRO"))
        registry = BlockingRegistry(SchemaRegistryConfig(url=url, allowed_networks=LOOPBACK))
        found = registry.find([schema_id, 999_999])
        assert found.keys() == {schema_id}
        assert found[schema_id].kind == "AVRO"
        assert json.loads(found[schema_id].text) == json.loads(text)
