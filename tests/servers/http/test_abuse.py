"""Hostile bodies are refused by every route that takes one, and cost little.

S4: endless bodies, and bodies of any claimed size. S5: two hundred odd pieces of JSON. S28: errors
contain only a code and what is allowed.
"""

from __future__ import annotations

import http.client
import json
import re
import socket
import tracemalloc
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from millstream.servers.http.app import OPERATIONS
from millstream.servers.http.routing.operations import HttpOperation, Media
from millstream.testing.broker import RunningBroker, running_broker

from .calls import ask
from .schemathesis_hooks import LEAK

JSON_BODIES = [
    one for one in OPERATIONS if one.body is not None and not isinstance(one.body, Media)
]
BODIES = [one for one in OPERATIONS if one.body is not None]


def name_of(one: HttpOperation) -> str:
    return f"{one.method} {one.path}"


def path_of(one: HttpOperation) -> str:
    return re.sub(r"{.*?}", "abused", one.path)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    with running_broker(tmp_path_factory.mktemp("node")) as broker:
        for kind in ("topics", "queues"):  # Whichever there are: bodies are read for either.
            ask(broker.url, "PUT", f"/v1/{kind}/abused", b"{}")
        yield broker


# S4.


@pytest.mark.parametrize("operation", BODIES, ids=name_of)
def test_a_body_that_claims_too_much_is_refused_at_its_header(
    running: RunningBroker, operation: HttpOperation
) -> None:
    for size in (300 * 1024 * 1024, 10_000_000_000, 10**19, 10**30):
        answer = ask(
            running.url, operation.method, path_of(operation), b"{", {"Content-Length": str(size)}
        )
        if size > 2**63:  # Which no server can count.
            assert answer.status in (400, 413)
            continue
        assert (answer.status, answer.code) == (413, "request_entity_too_large")
        assert answer.headers["connection"] == "close"


@pytest.mark.parametrize("operation", BODIES, ids=name_of)
def test_a_body_without_end_is_not_kept(running: RunningBroker, operation: HttpOperation) -> None:
    """It is sent for as long as the node reads it, which is up to the limit."""
    host, _, port = urlsplit(running.url).netloc.partition(":")
    head = f"{operation.method} {path_of(operation)} HTTP/1.1\r\nHost: localhost\r\n"
    piece = b"10000\r\n" + b" " * 65_536 + b"\r\n"
    sent_max = 400 * 1024 * 1024
    sent = 0
    tracemalloc.start()
    try:
        with socket.create_connection((host, int(port)), timeout=60) as client:
            client.sendall(f"{head}Transfer-Encoding: chunked\r\n\r\n".encode())
            try:
                while sent < sent_max:
                    client.sendall(piece)
                    sent += len(piece)
            except OSError:
                pass  # It hung up.
            else:
                pytest.fail("it was read to the end")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 64 * 1024 * 1024
    assert ask(running.url, "GET", "/health/live").status == 200


def test_records_that_are_too_large_end_no_connection(running: RunningBroker) -> None:
    connection = http.client.HTTPConnection(urlsplit(running.url).netloc, timeout=3)
    body = json.dumps({"records": [{"value": "x" * 1_100_000}]})
    try:
        for _ in range(3):
            connection.request("POST", "/v1/topics/abused/records", body)
            got = connection.getresponse()
            assert (got.status, json.load(got)["error"]["code"]) == (413, "batch_too_large")
    finally:
        connection.close()


# S5.


def odd_bodies() -> dict[str, bytes]:
    """Return two hundred pieces of JSON that must be refused, by what is odd about them."""
    found: dict[str, bytes] = {}
    for depth in (1_000, 5_000, 100_000, 1_000_000):
        found[f"lists {depth} deep"] = b"[" * depth + b"]" * depth
        found[f"lists {depth} deep without an end"] = b"[" * depth
        found[f"objects {depth} deep"] = b'{"a":' * depth + b"1" + b"}" * depth
        found[f"a field with lists {depth} deep"] = b'{"a":' + b"[" * depth + b"]" * depth + b"}"
    for field in (b"records", b"key", b"partitions", b"configs", b"before", b"schema", b"value"):
        inner = {
            "an integer of 10 MB": b"9" * 10_000_000,
            "an integer of 5,000 digits": b"1" * 5_000,
            "a number below zero of 5,000 digits": b"-" + b"1" * 5_000,
            "a fraction of 100,000 digits": b"0." + b"1" * 100_000 + b"e-",
            "an exponent of 5,000 digits": b"1e" + b"9" * 5_000,
            "infinity": b"Infinity",
            "minus infinity": b"-Infinity",
            "not a number": b"NaN",
            "a leading zero": b"01",
            "a plus": b"+1",
            "hexadecimal": b"0x10",
            "half a surrogate pair, escaped": b'"\\ud800"',
            "the other half, escaped": b'"\\udc00"',
            "two first halves, escaped": b'"\\ud800\\ud800"',
            "half a surrogate pair, raw": b'"\xed\xa0\x80"',
            "overlong UTF-8": b'"\xc0\xaf"',
            "overlong NUL": b'"\xc0\x80"',
            "UTF-8 cut short": b'"\xe2\x82"',
            "beyond Unicode": b'"\xf5\x80\x80\x80"',
            "a NUL": b'"\x00"',
            "a line break": b'"a\nb"',
            "an escape that is none": b'"\\x41"',
            "a text without an end": b'"aaaa',
            "single quotes": b"'a'",
            "a bare word": b"undefined",
            "a field twice": b'{"a": 1, "a": 1}',
            "a field twice in a list": b'[{"a": 1, "b": [{"c": 1, "c": 2}]}]',
            "a comma too many": b"[1,]",
            "a comment": b"/* a */ 1",
        }
        for words, text in inner.items():
            found[f"{field.decode()} is {words}"] = b'{"%s": %s}' % (field, text)
    plain = b'{"key": "a"}'
    return found | {
        "nothing but spaces": b"   ",
        "a byte order mark": b"\xef\xbb\xbf" + plain,
        "UTF-16": plain.decode().encode("utf-16"),
        "UTF-32": plain.decode().encode("utf-32"),
        "latin-1": '{"ä": 1}'.encode("latin-1"),
        "a NUL behind it": plain + b"\x00",
        "more behind it": plain + b"x",
        "two of them": plain + plain,
        "a list of them": b"[" + plain + b"]",
        "a number": b"7",
        "a text": b'"a"',
        "null": b"null",
        "true": b"true",
        "half of it": plain[:-1],
        "an end only": b"}",
        "no quotes": b"{a: 1}",
        "a form": b"key=a",
        "XML": b"<a/>",
        "noise": bytes(range(256)) * 10,
        "zeros": bytes(1000),
        "a field twice": b'{"key": "a", "key": "a"}',
        "a field twice, once with an escape": b'{"key": "a", "\\u006bey": "a"}',
        "100,000 fields that nobody knows": json.dumps(
            dict.fromkeys(map(str, range(10**5)))
        ).encode(),
        "a name of 1 MB": b'{"' + b"x" * 1_000_000 + b'": 1}',
    }


ODD = odd_bodies()


def test_there_are_two_hundred_of_them() -> None:
    assert len(ODD) >= 200


@pytest.mark.parametrize("operation", JSON_BODIES, ids=name_of)
def test_odd_json_is_refused_and_the_node_serves_on(
    running: RunningBroker, operation: HttpOperation
) -> None:
    bodies = dict(ODD)
    if not operation.is_body_optional:
        bodies["nothing"] = b""
    for words, body in bodies.items():
        try:
            answer = ask(running.url, operation.method, path_of(operation), body)
        except OSError:  # It hung up on what is too much, and the answer was lost with that.
            assert len(body) > 100_000, words
            continue
        assert answer.status in (400, 413), (words, answer)
        assert answer.code in ("malformed_request", "request_entity_too_large"), words
        assert answer.message, words
        assert answer.json["error"]["detail"] is None
        assert len(answer.body) < 2_000, words
        assert not LEAK.search(answer.body.decode()), words
    assert ask(running.url, "GET", "/health/live").status == 200


# S28.


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/console/nothing", 404),
        ("GET", "/v1/nothing", 404),
        ("GET", "/v1/topics/nothing", 404),
        ("GET", "/v1/topics/../../etc/passwd", 404),
        ("GET", "/v1/topics/%2e%2e%2f%2e%2e%2fetc%2fpasswd", 404),
        ("PATCH", "/v1/topics", 405),
        ("GET", "/v1/topics/abused/records?from=x", 400),
        ("GET", "/v1/topics/abused/records?from=77", 416),
        ("GET", "/v1/topics/abused/records?partition=77", 404),
        ("PUT", "/v1/topics/abused", 415),
    ],
)
def test_an_error_tells_its_code_and_what_is_wrong_and_nothing_of_the_node(
    running: RunningBroker, method: str, path: str, status: int
) -> None:
    headers = {"Content-Encoding": "gzip"} if status == 415 else {}
    answer = ask(running.url, method, path, b"" if method == "PUT" else None, headers)
    assert answer.status == status
    error = answer.json["error"]
    assert error.keys() == {"code", "message", "detail"}
    assert error["code"]
    assert error["message"]
    assert not LEAK.search(answer.body.decode())
    assert "server" not in answer.headers
    assert "x-powered-by" not in answer.headers
