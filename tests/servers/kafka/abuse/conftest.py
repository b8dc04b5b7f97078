"""One node for all tests that need no limits of their own."""

from __future__ import annotations

import pytest

from .node import running_node


@pytest.fixture(scope="session")
def shared_node(tmp_path_factory):
    with running_node(tmp_path_factory.mktemp("node")) as running:
        yield running


@pytest.fixture
def node(shared_node):
    """The node that is shared; whatever a test did to it, it has to be well afterwards."""
    yield shared_node
    shared_node.check()
