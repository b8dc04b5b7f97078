"""One node for all tests that need no special limits."""

from __future__ import annotations

import pytest

from .node import running_node


@pytest.fixture(scope="session")
def shared_node(tmp_path_factory):
    with running_node(tmp_path_factory.mktemp("node")) as running:
        yield running


@pytest.fixture
def node(shared_node):
    """The shared node, which must be healthy after every test."""
    yield shared_node
    shared_node.check()
