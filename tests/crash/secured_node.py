"""A node with logins as a process, which is used with many secrets."""

from __future__ import annotations

import base64
import http.client
import json
import subprocess
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote

from millstream.broker.access.credentials import ScramMechanism
from millstream.broker.access.sasl.scram import salted_password
from millstream.protocols.kafka.apis import APIS
from millstream.protocols.kafka.messages.sasl import (
    SaslAuthenticateRequest,
    SaslHandshakeRequest,
)
from millstream.protocols.kafka.messages.scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsRequestUpsertion,
)
from tests.crash.broker_process import MILLSTREAM, BrokerProcess
from tests.servers.http.test_access_matrix import BODIES, ENDLESS, OPERATIONS, QUERIES
from tests.servers.kafka.client import RawClient
from tests.servers.kafka.sample_requests import sample
from tests.servers.kafka.test_logins import proof

TOKENS = PASSWORDS = 10
SHA_256 = ScramMechanism.SHA_256
SALT = b"salt"
TOPIC = "orders"


class SpanCollector(ThreadingHTTPServer):
    """Keeps what a node sends to a collector, as it comes."""

    def __init__(self) -> None:
        self.received: list[bytes] = []
        super().__init__(("127.0.0.1", 0), _Received)


class _Received(BaseHTTPRequestHandler):
    server: SpanCollector

    def do_POST(self) -> None:
        self.server.received.append(self.rfile.read(int(self.headers["content-length"])))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


class SecuredNode:
    """A node with logins, its secrets, and everything that it has answered."""

    def __init__(self, folder: Path, endpoint: str | None = None) -> None:
        self.folder = folder
        settings = {
            "access.enabled": "true",
            "access.plain_without_tls": "true",
            "http.access_log": "true",
            "http.console": "write",
        }
        if endpoint is not None:
            settings |= {
                "telemetry.traces": "true",
                "telemetry.traces_ratio": "1",
                "telemetry.metrics": "true",
                "telemetry.metrics_interval_ms": "100",
                "telemetry.endpoint": endpoint,
            }
        pairs = [part for pair in settings.items() for part in ("--set", "=".join(pair))]
        self.process = BrokerProcess(folder, *pairs, "--log-level", "debug", "--log-format", "json")
        made = subprocess.run(
            [MILLSTREAM, "access", "init", "--data", str(folder / "data")],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        self.tokens = [made.stdout.strip()]
        self.passwords = {f"user-{n}": f"pass-{uuid.uuid4()}" for n in range(PASSWORDS)}
        self.answers: list[bytes] = []

    def start(self) -> None:
        self.process.start()
        self.process.wait_until_ready()

    # Requests.

    def ask(
        self, method: str, path: str, body: Any = None, *, authorization: str | None = None
    ) -> tuple[int, Any]:
        headers = {} if authorization is None else {"Authorization": authorization}
        connection = http.client.HTTPConnection(self.process.http, timeout=60)
        try:
            data = None if body is None else json.dumps(body)
            connection.request(method, path, body=data, headers=headers)
            response = connection.getresponse()
            # An endless response has begun, which is enough.
            is_endless = response.getheader("content-type") == "text/event-stream"
            answer = b"" if is_endless else response.read()
            self.answers.append(str(response.getheaders()).encode())
            if response.status != 201:  # A token is shown when it is created, and never again.
                self.answers.append(answer)
            return response.status, json.loads(answer) if answer[:1] == b"{" else answer
        finally:
            connection.close()

    def as_admin(self, method: str, path: str, body: Any = None) -> Any:
        status, answer = self.ask(method, path, body, authorization=f"Bearer {self.tokens[0]}")
        assert status < 400, answer
        return answer

    def make_secrets(self) -> None:
        """Make the other tokens, and the users with passwords."""
        for number in range(1, TOKENS):
            answer = self.as_admin("POST", "/v1/access/tokens", {"user": f"user-{number}"})
            self.tokens.append(answer["token"])
        acl = {"user": "ANONYMOUS", "operation": "alter", "resource_type": "cluster"}
        acl["resource"] = "kafka-cluster"
        self.as_admin("POST", "/v1/access/acls", acl)
        with RawClient(self.process.bootstrap) as client:
            upsertions = tuple(
                AlterUserScramCredentialsRequestUpsertion(
                    name=name,
                    mechanism=1,
                    iterations=4096,
                    salt=SALT,
                    salted_password=salted_password(SHA_256, password, SALT, 4096),
                )
                for name, password in self.passwords.items()
            )
            request = AlterUserScramCredentialsRequest(deletions=(), upsertions=upsertions)
            assert {result.error_code for result in client.call(request).results} == {0}
        self.as_admin("DELETE", "/v1/access/acls", acl)
        acl = {"user": "user-1", "operation": "all", "resource_type": "topic", "resource": TOPIC}
        self.as_admin("POST", "/v1/access/acls", acl)
        self.as_admin("PUT", f"/v1/topics/{TOPIC}")

    def use_tokens(self) -> None:
        """Use tokens at every operation, rightly and in wrong places."""
        for token in (self.tokens[1], self.tokens[2], self.tokens[0]):
            for operation in OPERATIONS:
                path = operation.path
                for parameter in ("topic", "queue", "group:path", "path:path"):
                    path = path.replace("{" + parameter + "}", TOPIC)
                path = path.replace("{partition}", "0").replace("{node}", "1")
                path = path.replace("{token}", "0" * 12) + QUERIES.get(operation.path, "")
                body = BODIES.get((operation.method, operation.path))
                if operation.path not in ENDLESS:
                    self.ask(operation.method, path, body, authorization=f"Bearer {token}")
        for token in self.tokens:
            wrong = token[:-1] + ("A" if token[-1] != "A" else "B")
            basic = base64.b64encode(f"{token}:{token}".encode()).decode()
            for value in (token, f"Bearer {wrong}", f"Basic {basic}", f"Bearer {token} x"):
                assert self.ask("GET", "/v1/topics", authorization=value)[0] == 401
            self.ask("GET", f"/v1/topics?token={token}")
            self.ask("GET", "/v1/access/whoami", authorization=f"Bearer {token}")
        self.ask("GET", "/metrics", authorization=f"Bearer {self.tokens[0]}")

    def use_passwords(self) -> None:
        """Log in by each mechanism, with the right password and with that of another."""
        others = [*self.passwords.values()][1:] + [*self.passwords.values()][:1]
        for (name, password), other in zip(self.passwords.items(), others, strict=True):
            for tried, is_right in ((password, True), (other, False)):
                with RawClient(self.process.bootstrap, client_id=name) as client:
                    assert (self.scram(client, name, tried) == 0) == is_right
                with RawClient(self.process.bootstrap, client_id=name) as client:
                    assert (self.plain(client, name, tried) == 0) == is_right
        for key, api in APIS.items():  # Some of these end the connection, so each has its own.
            with RawClient(self.process.bootstrap) as client:
                assert self.plain(client, "user-1", self.passwords["user-1"]) == 0
                request = sample(key, api.versions.last, None, uuid.uuid4())
                client.send(request, api.versions.last)
                try:
                    self.answers.append(client.receive_frame())
                except (OSError, AssertionError):
                    continue

    def scram(self, client: RawClient, name: str, password: str) -> int:
        client.call(SaslHandshakeRequest(mechanism=SHA_256.value))
        first = f"n={name},r=nonce"
        answer = client.call(SaslAuthenticateRequest(auth_bytes=f"n,,{first}".encode()))
        final = proof(SHA_256, first, bytes(answer.auth_bytes).decode(), password)
        return self._said(client.call(SaslAuthenticateRequest(auth_bytes=final)))

    def plain(self, client: RawClient, name: str, password: str) -> int:
        client.call(SaslHandshakeRequest(mechanism="PLAIN"))
        message = f"\0{name}\0{password}".encode()
        return self._said(client.call(SaslAuthenticateRequest(auth_bytes=message)))

    def _said(self, answer: Any) -> int:
        self.answers.append(repr(answer).encode())
        return int(answer.error_code)

    # What is left.

    def needles(self) -> dict[str, bytes]:
        """All forms of all secrets."""
        forms: dict[str, bytes] = {}
        secrets = [token.split("_", 2)[2] for token in self.tokens]
        assert len(secrets) == TOKENS
        for text in (*secrets, *self.passwords.values()):
            raw = text.encode()
            forms |= {
                f"{text}: text": raw,
                f"{text}: most of it": raw[:-2],
                f"{text}: base64": base64.b64encode(raw).rstrip(b"="),
                f"{text}: hex": raw.hex().encode(),
                f"{text}: quoted": quote(text, safe="").encode(),
                f"{text}: wide": text.encode("utf-16-le"),
            }
        for name, password in self.passwords.items():
            salted = salted_password(SHA_256, password, SALT, 4096)
            forms[f"{name}: salted"] = salted
            forms[f"{name}: salted, base64"] = base64.b64encode(salted).rstrip(b"=")
        return forms
