"""TLS for clients of a node: its certificate, and who a client is by the certificate it shows."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from millstream.config.certificates import CertificateFiles, Certificates, server_context
from millstream.config.principal_rules import map_principal
from millstream.config.schema import ClientAuth, TlsConfig

CHECK_SECONDS = 5.0
"""How often a node looks whether certificate files have changed."""

CLOSE_SECONDS = 1.0
"""How long a client may take to agree that an idle connection is closed."""

_VERIFY_MODES: Mapping[ClientAuth, ssl.VerifyMode] = {
    ClientAuth.NONE: ssl.CERT_NONE,
    ClientAuth.REQUEST: ssl.CERT_OPTIONAL,
    ClientAuth.REQUIRE: ssl.CERT_REQUIRED,
}

_KEYWORDS: Mapping[str, str] = {
    "commonName": "CN",
    "countryName": "C",
    "domainComponent": "DC",
    "localityName": "L",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "stateOrProvinceName": "ST",
    "streetAddress": "STREET",
    "userId": "UID",
}
"""Attribute types that RFC 2253 has a keyword for, by OpenSSL's names. Others keep these names."""


class ServerCertificates(Certificates[ssl.SSLContext]):
    """The certificate that a node shows to its clients, as a TLS context."""

    def __init__(self, files: CertificateFiles, client_auth: ClientAuth) -> None:
        """Read the files; raise `InvalidConfig` if they cannot be used."""
        verify = _VERIFY_MODES[client_auth]
        super().__init__(
            files, lambda files: server_context(files, verify), noun="certificates for clients"
        )

    @classmethod
    def configured(cls, config: TlsConfig) -> ServerCertificates | None:
        """Return what the settings name; `None` without."""
        if config.cert_file is None or config.key_file is None:
            return None
        files = CertificateFiles(config.cert_file, config.key_file, config.ca_file)
        return cls(files, config.client_auth)


def distinguished_name(certificate: Mapping[str, Any]) -> str:
    """Return the subject of a certificate, as `ssl` describes it, in the form of RFC 2253.

    It begins with the last part, as in "CN=alice,OU=Billing,O=Example": rules that were written for
    Kafka apply to it.
    """
    parts = [
        "+".join(f"{_KEYWORDS.get(kind, kind)}={_escape(value)}" for kind, value in part)
        for part in certificate.get("subject", ())
    ]
    return ",".join(reversed(parts))


def _escape(value: str) -> str:
    escaped = "".join(f"\\{c}" if c in ',+"\\<>;' else c for c in value)
    if escaped.startswith(("#", " ")):
        escaped = "\\" + escaped
    if escaped.endswith(" ") and len(escaped) > 1 and not escaped.endswith("\\ "):
        escaped = escaped[:-1] + "\\ "
    return escaped


def close_idle(transport: asyncio.Transport) -> None:
    """Close a connection that has nothing to send, though its client may not read.

    A connection by TLS is closed when the client agrees, which one that does not read never does.
    """
    transport.close()
    is_tls = transport.get_extra_info("ssl_object") is not None
    if is_tls and not transport.get_write_buffer_size():
        asyncio.get_running_loop().call_later(CLOSE_SECONDS, transport.abort)


class CertificateHolder(NamedTuple):
    """The name in the certificate of a client, and of the user that it belongs to."""

    name: str
    user: str | None
    """`None` if the rules do not name a user for it."""


def certificate_holder(
    transport: asyncio.BaseTransport, principal_rules: str
) -> CertificateHolder | None:
    """Return who a client is by its certificate; `None` if it has shown none."""
    certificate: dict[str, Any] | None = transport.get_extra_info("peercert")
    if not certificate:
        return None
    name = distinguished_name(certificate)
    return CertificateHolder(name, map_principal(principal_rules, name))


class CertificateWatch:
    """Reads certificate files again when they have changed. Runs on the event loop."""

    def __init__(self, certificates: Certificates[Any], on_change: Callable[[], None]) -> None:
        """Watch files; `on_change` is called when there are new contexts."""
        self._certificates = certificates
        self._on_change = on_change
        self._asked = asyncio.Event()
        self._task = asyncio.get_running_loop().create_task(self._run())

    def check_now(self) -> None:
        """Look now, and not at the next interval: the operator asks."""
        self._asked.set()

    def stop(self) -> None:
        self._task.cancel()

    async def _run(self) -> None:
        while True:
            try:
                async with asyncio.timeout(CHECK_SECONDS):
                    await self._asked.wait()
            except TimeoutError:
                pass
            self._asked.clear()
            if await asyncio.to_thread(self._certificates.reload_if_changed):
                self._on_change()
