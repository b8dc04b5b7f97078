"""The files of `deploy/`, read."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import yaml

from millstream.config.loader import Configuration, load_configuration
from millstream.servers.http.handlers.health import Health, health_operations

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
UID = 10001
"""User id of a node in every deployment. Volumes store the number."""

VOLUME = "/var/lib/millstream"
ROUTES = {one.path for one in health_operations(lambda: Health(True), list)}


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.load_all((DEPLOY / name).read_text(), Loader=_Strict))


def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((DEPLOY / "grafana/millstream.json").read_text())
    return found


def instructions(name: str = "Containerfile") -> list[tuple[str, str]]:
    """Return the instructions of a container file, each with its arguments on one line."""
    lines = [line for line in (DEPLOY / name).read_text().splitlines() if line[:1] != "#"]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    parts = (line.split(maxsplit=1) for line in joined.splitlines() if line)
    return [(word, rest) for word, rest in parts]


def configured(path: Path, *pairs: str, **variables: str) -> Configuration:
    """Return what a node would start with; nothing of this process's own environment counts."""
    return load_configuration(environment=variables, config=str(path), pairs=pairs)


class _Strict(yaml.SafeLoader):
    """Rejects repeated keys, of which YAML would take the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        assert len(keys) == len(set(keys)), f"a key is there twice: {keys}{node.start_mark}"
        return super().construct_mapping(node, deep)
