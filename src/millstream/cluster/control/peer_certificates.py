"""Certificates of peers: mutual TLS between the nodes of a cluster.

Each node has a certificate of the cluster's authority, which names the host of its peer address. A
node that connects checks that the other's certificate names the host that it connects to; the other
one checks that the certificate names the host under which the node that it claims to be is
registered. Files are read again when they have changed, without a restart: connections that exist
go on with the certificate that they were made with.
"""

from __future__ import annotations

import ipaddress
import ssl
from collections.abc import Iterable
from typing import NamedTuple

from millstream.config.certificates import (
    CertificateFiles,
    Certificates,
    client_context,
    server_context,
)
from millstream.config.schema import ClusterConfig


class PeerContexts(NamedTuple):
    """Contexts for connections of other nodes, and for those to other nodes."""

    server: ssl.SSLContext
    client: ssl.SSLContext


class PeerCertificates(Certificates[PeerContexts]):
    """The certificate of a node and the authority of its cluster, as TLS contexts."""

    def __init__(self, files: CertificateFiles) -> None:
        """Read the files; raise `InvalidConfig` if they cannot be used."""
        super().__init__(files, _contexts, noun="certificates for peers")

    @classmethod
    def configured(cls, config: ClusterConfig) -> PeerCertificates | None:
        """Return what the settings name; `None` without."""
        ca_file, cert_file, key_file = (
            config.peer_ca_file,
            config.peer_cert_file,
            config.peer_key_file,
        )
        if ca_file is None or cert_file is None or key_file is None:
            return None
        return cls(CertificateFiles(cert_file, key_file, ca_file))

    @property
    def server_context(self) -> ssl.SSLContext:
        return self.contexts.server

    @property
    def client_context(self) -> ssl.SSLContext:
        return self.contexts.client


def _contexts(files: CertificateFiles) -> PeerContexts:
    return PeerContexts(server_context(files, ssl.CERT_REQUIRED), client_context(files))


def names_host(names: Iterable[str], host: str) -> bool:
    """Return whether a certificate with these names is one for a host."""
    wanted = _canonical(host)
    _, _, domain = wanted.partition(".")
    is_address = _is_address(host)
    return any(
        _canonical(name) == wanted
        or (name.startswith("*.") and not is_address and name[2:].lower() == domain)
        for name in names
    )


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _canonical(name: str) -> str:
    """Return a name as others write it: hosts in lower case, addresses in their short form."""
    return str(ipaddress.ip_address(name)) if _is_address(name) else name.lower().rstrip(".")
