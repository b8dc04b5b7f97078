"""Transactions over HTTP: an abort is told in the log, with who did it."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from millstream.config.schema import AccessConfig
from millstream.protocols.kafka.messages.producers import InitProducerIdRequest
from millstream.testing.broker import running_broker
from tests.servers.http.calls import ask
from tests.servers.kafka.client import RawClient


def test_an_abort_is_told_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    access = AccessConfig(enabled=True, super_users=("ANONYMOUS",))
    with running_broker(tmp_path, access=access) as node:
        with RawClient(node.bootstrap) as client:
            begin = InitProducerIdRequest(transactional_id="t", transaction_timeout_ms=60_000)
            assert client.call(begin).error_code == 0
        with caplog.at_level(logging.INFO):
            assert ask(node.url, "GET", "/v1/transactions/t").status == 200
            assert ask(node.url, "POST", "/v1/transactions/t/abort").status == 200
    [told] = [one for one in caplog.records if "was changed" in one.getMessage()]
    assert (told.principal, told.resource, told.operation) == (
        "User:ANONYMOUS",
        "transactional id 't'",
        "write",
    )
