"""A private certificate authority in a directory, for trying and for tests."""

from __future__ import annotations

import datetime
import ipaddress
import os
import re
from collections.abc import Sequence

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from millstream.errors import InvalidConfig

CERTIFICATE_FILE = "ca.pem"
KEY_FILE = "ca.key"
AUTHORITY_DAYS = 3_650
NAME_WORDS = "1 to 64 letters, digits, dots, hyphens and underscores, the first no dot"

_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}")
_CLOCK_SKEW = datetime.timedelta(minutes=5)
"""Certificates are valid from a little before they were made: clocks of machines differ."""


class CertificateAuthority:
    """An authority with its private key."""

    def __init__(
        self,
        folder: str,
        certificate: x509.Certificate,
        key: ec.EllipticCurvePrivateKey,
        *,
        is_new: bool,
    ) -> None:
        self._folder = folder
        self._certificate = certificate
        self._key = key
        self.is_new = is_new
        """Whether it was made now."""

    @classmethod
    def open(cls, folder: str) -> CertificateAuthority:
        """Return the authority of a directory; make one if there is none."""
        os.makedirs(folder, mode=0o700, exist_ok=True)
        paths = [os.path.join(folder, name) for name in (CERTIFICATE_FILE, KEY_FILE)]
        exist = [os.path.exists(path) for path in paths]
        if exist == [False, False]:
            return cls._make(folder)
        if exist != [True, True]:
            missing = paths[exist.index(False)]
            raise InvalidConfig(f"{missing} is missing: an authority has a certificate and a key")
        certificate_path, key_path = paths
        try:
            with open(certificate_path, "rb") as file:
                certificate = x509.load_pem_x509_certificate(file.read())
            with open(key_path, "rb") as file:
                key = serialization.load_pem_private_key(file.read(), password=None)
        except (ValueError, TypeError) as error:
            raise InvalidConfig(f"{folder} has no usable authority: {error}") from error
        if (
            not isinstance(key, ec.EllipticCurvePrivateKey)
            or key.public_key() != certificate.public_key()
        ):
            raise InvalidConfig(f"{key_path} is not the private key (EC) of {certificate_path}")
        return cls(folder, certificate, key, is_new=False)

    @classmethod
    def _make(cls, folder: str) -> CertificateAuthority:
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Millstream private authority")])
        certificate = (
            _builder(name, name, key, AUTHORITY_DAYS)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_key_usage(is_authority=True), critical=True)
            .sign(key, hashes.SHA256())
        )
        made = cls(folder, certificate, key, is_new=True)
        made._write(CERTIFICATE_FILE, KEY_FILE, certificate, key)
        return made

    @property
    def certificate_file(self) -> str:
        """The path of the authority's certificate, which clients trust."""
        return os.path.join(self._folder, CERTIFICATE_FILE)

    def issue_server(self, name: str, hosts: Sequence[str], *, days: int) -> str:
        """Make a certificate of a node, for clients and for other nodes; return its path."""
        names = [_general_name(host) for host in hosts]
        usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        return self._issue(name, hosts[0], usages, names, days)

    def issue_client(self, user: str, *, days: int) -> str:
        """Make a certificate of a user; return its path."""
        return self._issue(user, user, [ExtendedKeyUsageOID.CLIENT_AUTH], [], days)

    def _issue(
        self,
        file_name: str,
        common_name: str,
        usages: list[x509.ObjectIdentifier],
        names: list[x509.GeneralName],
        days: int,
    ) -> str:
        if _NAME.fullmatch(file_name) is None or file_name == "ca":
            raise InvalidConfig(f"a name must be {NAME_WORDS}, and not ca, got {file_name!r}")
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name[:64])])
        builder = (
            _builder(subject, self._certificate.subject, key, days)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(is_authority=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()),
                critical=False,
            )
        )
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        certificate = builder.sign(self._key, hashes.SHA256())
        return self._write(f"{file_name}.pem", f"{file_name}.key", certificate, key)

    def _write(
        self,
        certificate_name: str,
        key_name: str,
        certificate: x509.Certificate,
        key: ec.EllipticCurvePrivateKey,
    ) -> str:
        """Write both files, the key first; return the path of the certificate."""
        pem = serialization.Encoding.PEM
        key_bytes = key.private_bytes(
            pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        self._replace(key_name, key_bytes, mode=0o600)
        return self._replace(certificate_name, certificate.public_bytes(pem), mode=0o644)

    def _replace(self, name: str, data: bytes, *, mode: int) -> str:
        """Replace a file, which is never readable by others than it is meant for."""
        path = os.path.join(self._folder, name)
        new_path = f"{path}.new"
        descriptor = os.open(new_path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, mode)
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(descriptor, mode)
            file.write(data)
            file.flush()
            os.fsync(descriptor)
        os.replace(new_path, path)
        return path


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCK_SKEW)
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _key_usage(*, is_authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not is_authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=is_authority,
        crl_sign=is_authority,
        encipher_only=False,
        decipher_only=False,
    )


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    try:
        return x509.DNSName(host)
    except ValueError as error:
        raise InvalidConfig(
            f"host must be a name or an address in ASCII, got {host!r}: {error}"
        ) from None
