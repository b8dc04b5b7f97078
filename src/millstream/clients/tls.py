"""TLS settings of a client: which authorities it trusts, and the certificate that it shows."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from millstream.errors import InvalidConfig

if TYPE_CHECKING:
    import ssl


VARIABLES: Mapping[str, str] = {
    "ca_file": "MILLSTREAM_CA_FILE",
    "cert_file": "MILLSTREAM_CERT_FILE",
    "key_file": "MILLSTREAM_KEY_FILE",
}
"""Variables of the environment that name the files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientTls:
    """Files (PEM) of a client."""

    ca_file: str | None = None
    """Authorities that the certificate of a node must be signed by; by default the system's."""
    cert_file: str | None = None
    """Certificate that the client shows, if the node asks for one."""
    key_file: str | None = None
    """Private key of that certificate."""

    def __post_init__(self) -> None:
        if (self.cert_file is None) != (self.key_file is None):
            given, missing = ("cert_file", "key_file")[:: 1 if self.cert_file else -1]
            raise InvalidConfig(f"{missing} must be set together with {given}")

    def or_environment(self, environment: Mapping[str, str] | None = None) -> ClientTls:
        """Return these files; if there are none, those that the environment names."""
        if self != ClientTls():
            return self
        environment = os.environ if environment is None else environment
        return ClientTls(
            **{name: environment.get(variable) or None for name, variable in VARIABLES.items()}
        )

    def context(self) -> ssl.SSLContext:
        """Return the context; it checks the name in the certificate of the node."""
        import ssl  # noqa: PLC0415 - OpenSSL takes ten milliseconds to load, and few need it.

        try:
            context = ssl.create_default_context(cafile=self.ca_file)
            context.minimum_version = ssl.TLSVersion.TLSv1_2
            if self.cert_file is not None:
                context.load_cert_chain(self.cert_file, self.key_file, password=_no_password)
        except (OSError, ValueError) as error:
            files = (self.ca_file, self.cert_file, self.key_file)
            names = ", ".join(name for name in files if name is not None)
            raise InvalidConfig(f"certificates cannot be used: {names}: {error}") from error
        return context


def _no_password() -> str:
    raise ValueError("the private key is encrypted")
