"""`millstream access certs`: certificates that nodes and clients take."""

from __future__ import annotations

import builtins
import ssl
import stat
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from millstream.cli.main import main
from millstream.config.schema import ClientAuth, TlsConfig
from millstream.testing.broker import running_broker


def certs(folder: Path, *arguments: str) -> Result:
    return CliRunner().invoke(main, ["access", "certs", "--out", str(folder), *arguments])


def command(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


def test_a_node_and_a_user_with_such_certificates_trust_each_other(tmp_path: Path) -> None:
    folder = tmp_path / "certs"
    made = certs(folder, "--client", "alice")
    assert made.exit_code == 0, made.output
    names = ("ca.pem", "server.pem", "alice.pem")
    assert made.output.splitlines() == [str(folder / name) for name in names]
    files = {
        f"{kind}_file": str(folder / name)
        for kind, name in (("ca", "ca.pem"), ("cert", "server.pem"), ("key", "server.key"))
    }
    tls = TlsConfig(**files, client_auth=ClientAuth.REQUIRE)
    with running_broker(tmp_path / "data", tls=tls) as broker:
        server = ("--server", broker.url, "--ca-file", str(folder / "ca.pem"))
        user = ("--cert-file", str(folder / "alice.pem"), "--key-file", str(folder / "alice.key"))
        assert command("topic", "create", "orders", *server, *user).exit_code == 0
        assert "orders" in command("topic", "list", *server, *user).output
        stranger = command("topic", "list", *server)
        assert stranger.exit_code == 1
        untrusted = command("topic", "list", "--server", broker.url)
        assert untrusted.exit_code == 1
        assert "certificate verify failed" in untrusted.output
        half = command("topic", "list", *server, *user[:2])
        assert half.exit_code == 2
        assert "key_file must be set together with cert_file" in half.output
        missing = command("topic", "list", *server[:2], "--ca-file", str(tmp_path / "no.pem"))
        assert missing.exit_code == 1
        assert "no.pem" in missing.output


def test_private_keys_are_for_the_user_alone(tmp_path: Path) -> None:
    assert certs(tmp_path / "certs", "--client", "alice").exit_code == 0
    keys = list((tmp_path / "certs").glob("*.key"))
    assert {key.name for key in keys} == {"ca.key", "server.key", "alice.key"}
    assert {stat.S_IMODE(key.stat().st_mode) for key in keys} == {0o600}


def test_an_authority_that_exists_signs_more_certificates(tmp_path: Path) -> None:
    assert certs(tmp_path, "--name", "").exit_code == 0
    authority = (tmp_path / "ca.pem").read_bytes()
    again = certs(tmp_path, "--name", "node-2", "--host", "node-2.example", "--host", "10.0.0.2")
    assert again.output.splitlines() == [str(tmp_path / "node-2.pem")]
    assert (tmp_path / "ca.pem").read_bytes() == authority
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "node-2.pem", tmp_path / "node-2.key")


@pytest.mark.parametrize("name", ["../x", "a/b", ".hidden", "", "ca", "x" * 65, "a b"])
def test_a_name_that_is_no_file_name_is_refused(tmp_path: Path, name: str) -> None:
    refused = certs(tmp_path / "certs", "--name", "", "--client", name)
    assert refused.exit_code == 1
    assert "a name must be 1 to 64 letters" in refused.output


def test_half_an_authority_is_not_replaced(tmp_path: Path) -> None:
    assert certs(tmp_path).exit_code == 0
    (tmp_path / "ca.key").unlink()
    refused = certs(tmp_path)
    assert refused.exit_code == 1
    assert "ca.key is missing" in refused.output
    (tmp_path / "ca.key").write_text("garbage")
    assert "no usable authority" in certs(tmp_path).output
    (tmp_path / "ca.key").write_bytes((tmp_path / "server.key").read_bytes())
    assert "is not the private key" in certs(tmp_path).output


def test_without_the_library_the_command_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.startswith(("cryptography", "millstream.cli.access.certificate_authority")):
            raise ModuleNotFoundError(f"No module named {name!r}", name="cryptography")
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    refused = certs(tmp_path)
    assert refused.exit_code == 1
    assert "cryptography is not installed: install 'millstream[access]'" in refused.output
