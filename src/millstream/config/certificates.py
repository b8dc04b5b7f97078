"""Certificate files of a node, as TLS contexts that follow changes of the files.

Files are read again when they have changed, without a restart: connections that exist go on with
the certificate that they were made with. If the new files cannot be used, the former contexts stay.
"""

from __future__ import annotations

import logging
import os
import ssl
import stat
from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

from millstream.errors import InvalidConfig

logger = logging.getLogger(__name__)

TLS_1_2_CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"
"""With forward secrecy and authenticated encryption only. All suites of TLS 1.3 have both."""

_ROOT = 0

T = TypeVar("T")


class CertificateFiles(NamedTuple):
    """Files (PEM) of a node."""

    cert_file: str
    key_file: str
    ca_file: str | None = None
    """Authorities that certificates of the other side must be signed by."""


class Certificates(Generic[T]):
    """Contexts that were made of files. May be used by one thread at a time."""

    def __init__(
        self, files: CertificateFiles, make: Callable[[CertificateFiles], T], *, noun: str
    ) -> None:
        """Read the files; raise `InvalidConfig` if they cannot be used.

        `noun` is what errors and the log call them: "certificates for peers".
        """
        self._files = files
        self._make = make
        self._noun = noun
        self._versions = self._read_versions()
        self.contexts = self._read()

    def reload_if_changed(self) -> bool:
        """Read the files again if they have changed; return whether there are new contexts.

        If they cannot be used, the former ones stay, and the next change is tried again.
        """
        try:
            versions = self._read_versions()
            if versions == self._versions:
                return False
            self._versions = versions
            self.contexts = self._read()
        except InvalidConfig as error:
            logger.error("new %s are not used: %s", self._noun, error)  # noqa: TRY400
            return False
        logger.info("%s were read again from %s", self._noun, self._files.cert_file)
        return True

    def _read(self) -> T:
        try:
            return self._make(self._files)
        except (OSError, ssl.SSLError, ValueError) as error:
            raise self._unusable(error) from error

    def _read_versions(self) -> tuple[tuple[int, int, int], ...]:
        """Return what changes with the files."""
        try:
            found = [os.stat(path) for path in self._files if path is not None]
        except OSError as error:
            raise self._unusable(error) from error
        return tuple((status.st_mtime_ns, status.st_size, status.st_ino) for status in found)

    def _unusable(self, error: Exception) -> InvalidConfig:
        names = ", ".join(path for path in self._files if path is not None)
        return InvalidConfig(f"{self._noun} cannot be used: {names}: {error}")


def load_certificates(context: ssl.SSLContext, files: CertificateFiles) -> ssl.SSLContext:
    """Load the files into a context, and allow strong protocols only.

    Raises `InvalidConfig` if others can read the key, otherwise what `ssl` and the system raise.
    """
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(TLS_1_2_CIPHERS)
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    _check_key_mode(files.key_file)
    if files.ca_file is not None:
        context.load_verify_locations(files.ca_file)
    context.load_cert_chain(files.cert_file, files.key_file, password=_no_password)
    return context


def server_context(files: CertificateFiles, verify: ssl.VerifyMode) -> ssl.SSLContext:
    """Return the context of a server, which verifies certificates of clients as told."""
    context = load_certificates(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), files)
    context.verify_mode = verify
    if verify is not ssl.CERT_NONE:
        # A ticket would let a client in whose certificate has expired since.
        context.options |= ssl.OP_NO_TICKET
        context.num_tickets = 0
    return context


def client_context(files: CertificateFiles) -> ssl.SSLContext:
    """Return the context of a client that shows a certificate and checks the server's name."""
    return load_certificates(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), files)


def _no_password() -> str:
    raise ValueError("the private key is encrypted")


def _check_key_mode(path: str) -> None:
    """Raise unless only the user of the node can read a key, or root's group if it is root's."""
    status = os.stat(path)
    forbidden = 0o027 if status.st_uid == _ROOT else 0o077
    if (mode := stat.S_IMODE(status.st_mode)) & forbidden:
        raise InvalidConfig(
            f"private key {path} can be read by others (mode {mode:04o}); run chmod 600"
        )
