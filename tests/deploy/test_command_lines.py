"""Command lines and variables in `deploy/` are ones that the programs take."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from millstream.cli.serve import serve
from millstream.config.keys import KEYS
from tests.deploy.files import documents, instructions

VARIABLES = {name for key in KEYS.values() for name in key.variables}


class Container(NamedTuple):
    """What a deployment starts."""

    file: str
    name: str
    image: str
    arguments: list[str]
    variables: list[str]


def composed(file: str) -> Iterator[Container]:
    (compose,) = documents(file)
    for name, service in compose["services"].items():
        variables = list(service.get("environment", ()))
        yield Container(file, name, service["image"], service.get("command", []), variables)


def orchestrated(file: str) -> Iterator[Container]:
    for manifest in documents(file):
        if manifest["kind"] != "StatefulSet":
            continue
        for one in manifest["spec"]["template"]["spec"]["containers"]:
            variables = [variable["name"] for variable in one.get("env", ())]
            yield Container(file, one["name"], one["image"], one.get("args", []), variables)


CONTAINERS = [
    *composed("compose.yaml"),
    *composed("compose-cluster.yaml"),
    *orchestrated("kubernetes/millstream.yaml"),
    *orchestrated("kubernetes/cluster.yaml"),
]
NODES = [one for one in CONTAINERS if one.image == "millstream:latest"]
MEMBERS = [one for one in CONTAINERS if one.image == "millstream-etcd:latest"]


def names(container: Any) -> str:
    return f"{container.file}-{container.name}"


def test_there_are_nodes_and_members_of_etcd():
    assert len(NODES) == 1 + 3 + 1 + 1
    assert len(MEMBERS) == 1 + 1


@pytest.mark.parametrize("container", NODES, ids=names)
def test_a_node_knows_its_options_and_variables(container: Container):
    assert json.loads(dict(instructions())["ENTRYPOINT"]) == ["millstream", "serve"]
    with serve.make_context("serve", list(container.arguments)) as context:
        assert context.params["insecure"] is True
        assert not context.args
    ours = {name for name in container.variables if name.startswith("MILLSTREAM_")}
    assert ours <= VARIABLES
    assert set(container.variables) - ours <= {"POD_NAME", "POD_NAMESPACE"}


@pytest.mark.parametrize("container", MEMBERS, ids=names)
def test_etcd_knows_its_options(container: Container):
    assert json.loads(dict(instructions("etcd.Containerfile"))["ENTRYPOINT"]) == ["etcd"]
    told = subprocess.run(["etcd", "--help"], capture_output=True, text=True, check=False)
    for one in container.arguments:
        assert f"{one.partition('=')[0]} " in told.stdout + told.stderr, one
