"""Certificates for tests, made with the `openssl` command."""

from __future__ import annotations

import ssl
import subprocess
from pathlib import Path


class Authority:
    """A certificate authority in a directory."""

    def __init__(self, folder: Path, name: str = "ca") -> None:
        self.folder = folder
        self.name = name
        _openssl(
            *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"),
            *("-nodes", "-days", "2", "-subj", f"/CN={name}"),
            *("-keyout", self._path(f"{name}.key"), "-out", self._path(f"{name}.pem")),
        )

    @property
    def certificate(self) -> str:
        """The path of the authority's own certificate."""
        return self._path(f"{self.name}.pem")

    def issue(
        self,
        name: str,
        *,
        usage: str = "serverAuth,clientAuth",
        days: int = 2,
        hosts: str = "IP:127.0.0.1",
    ) -> str:
        """Make a key and a certificate; return the path of the file with both.

        It names `name` and `hosts`.
        """
        key, request, out = (self._path(f"{name}.{kind}") for kind in ("key", "csr", "crt"))
        extensions = self.folder / f"{name}.ext"
        extensions.write_text(f"subjectAltName=DNS:{name},{hosts}\nextendedKeyUsage={usage}\n")
        _openssl(
            *("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
            *("-subj", f"/CN={name}", "-keyout", key, "-out", request),
        )
        _openssl(
            *("x509", "-req", "-in", request, "-out", out, "-days", str(days)),
            *("-CA", self._path(f"{self.name}.pem"), "-CAkey", self._path(f"{self.name}.key")),
            *("-CAcreateserial", "-extfile", str(extensions)),
        )
        both = self.folder / f"{name}.both.pem"
        both.write_text(Path(key).read_text() + Path(out).read_text())
        both.chmod(0o600)
        return str(both)

    def server_context(self, certificate: str) -> ssl.SSLContext:
        """Return a context that shows a certificate, and wants one of this authority."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        context.load_verify_locations(self._path(f"{self.name}.pem"))
        context.verify_mode = ssl.CERT_REQUIRED
        return context

    def client_context(self, certificate: str | None) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(self._path(f"{self.name}.pem"))
        if certificate is not None:
            context.load_cert_chain(certificate)
        return context

    def _path(self, name: str) -> str:
        return str(self.folder / name)


def _openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)
