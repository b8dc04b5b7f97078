"""`deploy/nginx.conf`: everything that a node serves passes a real nginx, live events at once."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from websockets.sync.client import connect

from millstream.clients.http.sync.client import Client
from millstream.config.schema import HttpConfig
from millstream.testing.broker import RunningBroker, running_broker
from tests.deploy.files import DEPLOY
from tests.servers.http.calls import ask

pytestmark = pytest.mark.slow

NAME = "log.example"


@pytest.fixture(scope="module")
def node(tmp_path_factory) -> Iterator[RunningBroker]:
    """A node with the one setting that the file asks for."""
    config = HttpConfig(allowed_hosts=(NAME,))
    with running_broker(tmp_path_factory.mktemp("data"), http_server=config) as running:
        yield running


@pytest.fixture(scope="module")
def proxy(node, tmp_path_factory) -> Iterator[str]:
    with nginx(tmp_path_factory.mktemp("nginx"), node) as url:
        yield url


@contextmanager
def nginx(folder: Path, node: RunningBroker) -> Iterator[str]:
    """Run nginx with the file of `deploy/`, with other ports; yield its address."""
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    site = (DEPLOY / "nginx.conf").read_text()
    for written, real in (
        ("server 127.0.0.1:8080;", f"server {urlsplit(node.url).netloc};"),
        ("listen 80;", f"listen 127.0.0.1:{port};"),
    ):
        assert site.count(written) == 1
        site = site.replace(written, real)
    (folder / "site.conf").write_text(site)
    temporary = "".join(
        f"{kind}_temp_path {folder}/{kind};\n"
        for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    user = "user root;\n" if os.getuid() == 0 else ""
    (folder / "nginx.conf").write_text(
        f"{user}daemon off;\nmaster_process off;\npid {folder}/pid;\nevents {{}}\n"
        f"http {{\naccess_log off;\n{temporary}include {folder}/site.conf;\n}}\n"
    )
    program = shutil.which("nginx") or "/usr/sbin/nginx"
    command = [program, "-p", folder, "-c", folder / "nginx.conf", "-e", folder / "error.log"]
    running = subprocess.Popen(command)
    try:
        wait_until_open(port, running, folder / "error.log")
        yield f"http://127.0.0.1:{port}"
    finally:
        running.terminate()
        running.wait(timeout=30)


def wait_until_open(port: int, running: subprocess.Popen[bytes], log: Path) -> None:
    """Connect until nginx listens; each attempt gives way to it for a moment."""
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except ConnectionRefusedError:
            with contextlib.suppress(subprocess.TimeoutExpired):
                running.wait(timeout=0.02)
                pytest.fail(log.read_text())
        else:
            return


def test_requests_for_the_public_name_are_served(proxy):
    host = {"Host": NAME}
    body = b'{"records": [{"value": 1}]}'
    assert ask(proxy, "POST", "/v1/topics/passed/records", body, host).status == 201
    answer = ask(proxy, "GET", "/v1/topics/passed/records?from=0", None, host)
    assert [record["value"] for record in answer.json["records"]] == [1]
    assert ask(proxy, "GET", "/", None, host).status == 200


def test_pages_of_the_public_name_may_write_and_others_may_not(proxy):
    port = urlsplit(proxy).port
    body = b'{"records": [{"value": 1}]}'

    def append(origin: str) -> int:
        headers = {"Host": f"{NAME}:{port}", "Origin": origin}
        return ask(proxy, "POST", "/v1/topics/pages/records", body, headers).status

    assert append(f"http://{NAME}:{port}") == 201
    assert append("http://evil.example") == 403


def test_another_name_is_refused_by_the_node(proxy):
    answer = ask(proxy, "GET", "/v1/topics", None, {"Host": "other.example"})
    assert answer.status == 421
    assert "http.allowed_hosts adds names" in answer.message


def test_live_events_pass_while_the_response_is_open(proxy, node):
    with Client(node.url) as client:
        client.append("live", {"n": 1})
        connection = http.client.HTTPConnection(urlsplit(proxy).netloc, timeout=60)
        connection.request("GET", "/v1/events?topic=live&from=earliest", headers={"Host": NAME})
        events = connection.getresponse()
        assert event_data(events)["records"][0]["value"] == {"n": 1}
        client.append("live", {"n": 2})
        assert event_data(events)["records"][0]["value"] == {"n": 2}
        connection.close()


def event_data(response: http.client.HTTPResponse) -> dict[str, object]:
    """Return the data of the next event that has records."""
    while True:
        line = response.readline()
        assert line, "the response has ended"
        if line.startswith(b"data:"):
            data = json.loads(line.removeprefix(b"data:"))
            if "records" in data:
                return data


def test_a_websocket_passes(proxy):
    port = urlsplit(proxy).port
    with connect(f"ws://127.0.0.1:{port}/v1/ws", additional_headers={}, proxy=None) as socket_:
        socket_.send(json.dumps({"id": 1, "op": "unsubscribe", "topics": ["a"]}))
        assert json.loads(socket_.recv(timeout=30))["id"] == 1


def test_a_body_as_large_as_the_node_takes_passes(proxy):
    value = "x" * (15 * 1024 * 1024)
    body = json.dumps({"records": [{"value": value}]}).encode()
    answer = ask(proxy, "POST", "/v1/topics/large/records", body, {"Host": NAME})
    # It is larger than a record may be. The node says so: nginx would answer with a page.
    assert answer.headers["content-type"] == "application/json"
    assert answer.status in (400, 413, 422)
