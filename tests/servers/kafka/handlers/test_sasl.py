"""SaslHandshake and SaslAuthenticate: no authentication is required, and attempts get an error."""

from __future__ import annotations

import pytest

from millstream.protocols.kafka.error_codes import ErrorCode
from millstream.protocols.kafka.messages.sasl import SaslAuthenticateRequest, SaslHandshakeRequest
from millstream.servers.kafka.handlers.sasl import sasl_authenticate, sasl_handshake
from tests.in_loop import in_loop
from tests.servers.kafka.socketless import open_handler_node


@pytest.mark.parametrize("version", [0, 1])
def test_no_mechanism_is_spoken(version):
    @in_loop
    async def run() -> None:
        async with open_handler_node() as node:
            request = SaslHandshakeRequest(mechanism="PLAIN")
            response = await node.ask(sasl_handshake, request, version=version)
            assert response.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM
            assert response.mechanisms == ()

    run()


@pytest.mark.parametrize("version", [0, 1, 2])
def test_no_proof_is_taken(version):
    @in_loop
    async def run() -> None:
        async with open_handler_node() as node:
            request = SaslAuthenticateRequest(auth_bytes=b"\0u\0secret")
            response = await node.ask(sasl_authenticate, request, version=version)
            assert response.error_code == ErrorCode.ILLEGAL_SASL_STATE
            assert "connect without SASL" in response.error_message
            assert "secret" not in response.error_message

    run()
