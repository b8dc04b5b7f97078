"""Certificates of peers: mutual TLS between the nodes of a cluster.

Each node has a certificate of the cluster's authority, which names the host of its peer address. A
node that connects checks that the other's certificate names the host that it connects to; the other
one checks that the certificate names the host under which the node that it claims to be is
registered. Files are read again when they have changed, without a restart: connections that exist
go on with the certificate that they were made with.
"""

from __future__ import annotations

import ipaddress
import logging
import os
import ssl
import stat
from collections.abc import Iterable
from typing import NamedTuple

from millstream.config.schema import ClusterConfig
from millstream.errors import InvalidConfig

logger = logging.getLogger(__name__)

CHECK_SECONDS = 5.0
"""How often a node looks whether the files have changed."""

_ROOT = 0


class PeerTlsFiles(NamedTuple):
    """Files (PEM) of a node."""

    ca_file: str
    cert_file: str
    key_file: str


class PeerCertificates:
    """The certificate of a node and the authority of its cluster, as TLS contexts."""

    def __init__(self, files: PeerTlsFiles) -> None:
        """Read the files; raise `InvalidConfig` if they cannot be used."""
        self._files = files
        self._versions = self._read_versions()
        self.server_context = _server_context(files)
        self.client_context = _client_context(files)

    @classmethod
    def configured(cls, config: ClusterConfig) -> PeerCertificates | None:
        """Return what the settings name; `None` without."""
        files = (config.peer_ca_file, config.peer_cert_file, config.peer_key_file)
        if not all(files):
            return None
        ca_file, cert_file, key_file = map(str, files)
        return cls(PeerTlsFiles(ca_file, cert_file, key_file))

    def reload_if_changed(self) -> bool:
        """Read the files again if they have changed; return whether there are new contexts.

        If they cannot be used, the former ones stay, and the next change is tried again.
        """
        try:
            versions = self._read_versions()
            if versions == self._versions:
                return False
            self._versions = versions
            server, client = _server_context(self._files), _client_context(self._files)
        except InvalidConfig as error:
            logger.error("new certificates for peers are not used: %s", error)  # noqa: TRY400
            return False
        self.server_context, self.client_context = server, client
        logger.info("certificates for peers were read again from %s", self._files.cert_file)
        return True

    def _read_versions(self) -> tuple[tuple[int, int, int], ...]:
        """Return what changes with the files."""
        try:
            found = [os.stat(path) for path in self._files]
        except OSError as error:
            raise _unusable(self._files, error) from error
        return tuple((status.st_mtime_ns, status.st_size, status.st_ino) for status in found)


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


def _server_context(files: PeerTlsFiles) -> ssl.SSLContext:
    context = _load(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), files)
    context.verify_mode = ssl.CERT_REQUIRED
    return context


def _client_context(files: PeerTlsFiles) -> ssl.SSLContext:
    return _load(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), files)


def _load(context: ssl.SSLContext, files: PeerTlsFiles) -> ssl.SSLContext:
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        _check_key_mode(files.key_file)
        context.load_verify_locations(files.ca_file)
        context.load_cert_chain(files.cert_file, files.key_file, password=_no_password)
    except (OSError, ssl.SSLError, ValueError) as error:
        raise _unusable(files, error) from error
    return context


def _no_password() -> str:
    raise ValueError("the private key is encrypted")


def _check_key_mode(path: str) -> None:
    """Raise unless only the user of the node can read a key, or root's group if it is root's."""
    status = os.stat(path)
    forbidden = 0o027 if status.st_uid == _ROOT else 0o077
    if (mode := stat.S_IMODE(status.st_mode)) & forbidden:
        raise InvalidConfig(
            f"cluster.peer_key_file {path} can be read by others (mode {mode:04o}); run chmod 600"
        )


def _unusable(files: PeerTlsFiles, error: Exception) -> InvalidConfig:
    return InvalidConfig(
        f"certificates for peers cannot be used: {files.cert_file}, {files.key_file},"
        f" {files.ca_file}: {error}"
    )
