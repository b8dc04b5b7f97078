"""The image: never root, not reachable unless the user allows it, signals reach the node."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path

import pytest

from millstream.config.schema import NodeConfig
from millstream.errors import InvalidConfig
from millstream.testing.broker import running_broker
from tests.deploy.files import DEPLOY, ROOT, ROUTES, UID, VOLUME, configured, instructions

KNOWN = {
    *("ARG", "CMD", "COPY", "ENTRYPOINT", "ENV", "EXPOSE", "FROM", "HEALTHCHECK", "LABEL", "RUN"),
    *("STOPSIGNAL", "USER", "VOLUME", "WORKDIR"),
}
STAGES = [n for n, (word, _) in enumerate(instructions()) if word == "FROM"]
LAST = instructions()[STAGES[-1] :]
FILE = DEPLOY / "millstream.toml"


def the(word: str) -> str:
    (found,) = [rest for name, rest in LAST if name == word]
    return found


def health_check() -> list[str]:
    command: list[str] = json.loads(the("HEALTHCHECK").partition("CMD ")[2])
    return command


def test_every_instruction_is_known():
    assert {word for word, _ in instructions()} <= KNOWN


def test_the_wheel_is_built_in_a_stage_of_its_own_and_only_its_environment_is_kept():
    assert len(STAGES) == 2
    assert {rest.split()[0] for word, rest in instructions() if word == "FROM"} == {
        "python:3.11-slim-bookworm"
    }
    copies = [rest for word, rest in LAST if word == "COPY"]
    assert copies[0] == "--from=build /opt/millstream /opt/millstream"
    assert not any("pip" in rest for word, rest in LAST if word == "RUN")


def test_a_node_never_runs_as_root():
    assert the("USER") == f"{UID}:{UID}"
    words = [word for word, _ in LAST]
    assert words.index("USER") < words.index("ENTRYPOINT")
    assert "RUN" not in words[words.index("USER") :]
    (made,) = [rest for word, rest in LAST if word == "RUN"]
    assert f"useradd --uid {UID}" in made
    assert f"--owner {UID} --group {UID} --mode 0750 {VOLUME}" in made


def test_signals_reach_the_node():
    assert json.loads(the("ENTRYPOINT")) == ["millstream", "serve"]
    assert the("STOPSIGNAL") == "SIGTERM"


def test_everything_that_is_written_lies_in_the_volume():
    assert the("VOLUME") == VOLUME
    assert configured(FILE, "node.insecure=true").node.data.startswith(f"{VOLUME}/")
    assert "PYTHONDONTWRITEBYTECODE=1" in the("ENV")


def test_the_image_refuses_to_listen_to_others_until_it_is_told_to():
    with pytest.raises(InvalidConfig, match="--insecure"):
        configured(FILE)
    node = configured(FILE, "node.insecure=true").node
    assert (node.kafka.host, node.http.host) == ("0.0.0.0", "0.0.0.0")


def test_ports_are_the_defaults_of_a_node():
    node = configured(FILE, "node.insecure=true").node
    default = NodeConfig()
    assert (node.kafka.port, node.http.port) == (default.kafka.port, default.http.port)
    assert the("EXPOSE") == f"{default.kafka.port} {default.http.port}"


def test_a_mounted_file_takes_the_place_of_the_one_in_the_image():
    (source,) = [rest.split() for word, rest in LAST if word == "COPY" and "toml" in rest]
    assert (ROOT / source[0]) == FILE
    assert f"MILLSTREAM_CONFIG={source[1]}" in the("ENV")
    assert not re.search(r"MILLSTREAM_(?!CONFIG=)", the("ENV")), "a variable wins over a file"


def test_the_health_check_tells_a_node_that_serves_from_one_that_is_gone(tmp_path: Path):
    program, *options, code = health_check()
    assert (program, options) == ("python", ["-I", "-c"])
    with running_broker(tmp_path) as broker:
        assert "'/health/ready'" in code
        assert "/health/ready" in ROUTES
        host, port = broker.url.removeprefix("http://").split(":")
        assert f"'{host}', {NodeConfig().http.port}" in code
        code = code.replace(str(NodeConfig().http.port), port)
        assert subprocess.run([sys.executable, *options, code], check=False).returncode == 0
    gone = subprocess.run([sys.executable, *options, code], check=False, capture_output=True)
    assert gone.returncode == 1


def test_what_the_image_copies_is_in_the_context_and_little_else_is():
    rules = [
        line
        for line in (ROOT / ".dockerignore").read_text().splitlines()
        if not line.startswith("#")
    ]
    assert rules[0] == "*"
    kept = [rule[1:] for rule in rules if rule.startswith("!")]
    for word, rest in instructions():
        if word == "COPY" and not rest.startswith("--from"):
            for source in rest.split()[:-1]:
                assert (ROOT / source).exists(), source
                assert any(fnmatch(source, rule) for rule in kept), source
    assert not any(fnmatch(name, rule) for name in (".git", ".venv", "tests") for rule in kept)


def test_all_engines_leave_out_the_same():
    assert (ROOT / ".containerignore").read_text() == (ROOT / ".dockerignore").read_text()


def test_no_registry_is_named():
    for path in DEPLOY.rglob("*"):
        if path.is_file():
            found = re.findall(r"(?:image:|FROM) +(\S+)", path.read_text())
            assert not [name for name in found if "." in name.split("/")[0].split(":")[0]], path
