"""The network of namespaces: which packets arrive, and that nothing is left behind."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from millstream.testing.cluster import namespaces
from millstream.testing.cluster.chaos import main
from millstream.testing.cluster.namespaces import (
    NamespaceNetwork,
    remove_left_over,
    why_unavailable,
)
from millstream.testing.cluster.network import CLIENTS, LinkRule, NetworkFailed
from millstream.testing.cluster.running import running_cluster

needs_namespaces = pytest.mark.usefixtures("has_rights")

PORT = 5000
RECEIVE = """
import socket, sys
here = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
here.bind((sys.argv[1], int(sys.argv[2])))
print("ready", flush=True)
while True:
    print(here.recv(100).decode(), flush=True)
"""
SEND = """
import socket, sys
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as here:
    here.sendto(sys.argv[3].encode(), (sys.argv[1], int(sys.argv[2])))
"""


@pytest.fixture(scope="module")
def has_rights() -> None:
    if (reason := why_unavailable()) is not None:
        pytest.skip(reason)


class Parties:
    """Two parties of a network that receive datagrams, and clients, which only send."""

    def __init__(self, stack: ExitStack) -> None:
        self.network = NamespaceNetwork(["a", "b"])
        stack.callback(self.network.close)
        self._receivers = {}
        for name in ("a", "b"):
            host = self.network.host(name)
            receiver = stack.enter_context(
                subprocess.Popen(
                    [*host.command, sys.executable, "-c", RECEIVE, host.address, str(PORT)],
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            stack.callback(receiver.kill)
            self._receivers[name] = receiver
            assert self.next_datagram(name) == "ready"

    def send(self, source: str, target: str, text: str) -> None:
        command = () if source == CLIENTS else self.network.host(source).command
        address = self.network.host(target).address
        subprocess.run([*command, sys.executable, "-c", SEND, address, str(PORT), text], check=True)

    def next_datagram(self, name: str) -> str:
        stdout = self._receivers[name].stdout
        assert stdout is not None
        return stdout.readline().strip()


@pytest.fixture
def parties(has_rights: None) -> Iterator[Parties]:
    with ExitStack() as stack:
        yield Parties(stack)


def test_all_parties_reach_each_other(parties: Parties):
    for source, target in (("a", "b"), ("b", "a"), (CLIENTS, "a"), (CLIENTS, "b")):
        parties.send(source, target, f"{source} to {target}")
        assert parties.next_datagram(target) == f"{source} to {target}"


def test_a_cut_drops_what_one_party_sends_to_one_other_and_nothing_else(parties: Parties):
    parties.network.cut_one_way("a", "b")
    parties.send("a", "b", "dropped")
    parties.send(CLIENTS, "b", "from clients")
    assert parties.next_datagram("b") == "from clients"
    parties.send("b", "a", "the other way")
    assert parties.next_datagram("a") == "the other way"
    parties.network.heal()
    parties.send("a", "b", "after healing")
    assert parties.next_datagram("b") == "after healing", "what was dropped is gone"


def test_a_cut_both_ways_also_cuts_off_clients(parties: Parties):
    parties.network.cut(CLIENTS, "a")
    parties.send(CLIENTS, "a", "dropped")
    parties.send("b", "a", "from b")
    assert parties.next_datagram("a") == "from b"
    parties.network.set_rules({(CLIENTS, "a"): LinkRule(), ("a", CLIENTS): LinkRule()})
    parties.send(CLIENTS, "a", "open again")
    assert parties.next_datagram("a") == "open again"


def test_slow_links_of_a_party_deliver_and_can_be_healed(parties: Parties):
    def shaping() -> str:
        command = ["tc", "-n", f"{parties.network.name}-b", "qdisc", "show", "dev", "eth0"]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    slow = LinkRule(delay_s=0.01)
    parties.network.set_rules({("a", "b"): slow, (CLIENTS, "b"): slow, ("b", "a"): slow})
    assert "netem" in shaping() or "tbf" in shaping()
    for name in ("a", CLIENTS):
        parties.send(name, "b", f"slow from {name}")
        assert parties.next_datagram("b") == f"slow from {name}"
    parties.network.heal()
    assert "netem" not in shaping()
    assert "tbf" not in shaping()


def test_slow_links_without_a_common_party_are_refused(parties: Parties):
    slow = LinkRule(delay_s=0.1)
    links = {("a", "b"): slow, ("b", CLIENTS): slow, (CLIENTS, "a"): slow}
    with pytest.raises(ValueError, match="one party in common"):
        parties.network.set_rules(links)


def left(prefix: str) -> list[str]:
    return [name for name in (*namespaces._namespaces(), *namespaces._links()) if prefix in name]


@needs_namespaces
def test_nothing_is_left_when_a_network_is_closed_or_cannot_be_made(
    monkeypatch: pytest.MonkeyPatch,
):
    network = NamespaceNetwork(["a"])
    assert len(left(network.name)) == 3, "the router, the party, and the link of this process"
    network.close()
    assert left(network.name) == []

    def fail(_: NamespaceNetwork) -> bool:
        raise NetworkFailed("not today")

    monkeypatch.setattr(NamespaceNetwork, "_try_netem", fail)
    with pytest.raises(NetworkFailed, match="not today"):
        NamespaceNetwork(["a"])
    assert left(f"ms{os.getpid()}-") == []


@needs_namespaces
def test_what_a_killed_process_has_left_is_removed_by_the_next():
    made = "from millstream.testing.cluster.namespaces import NamespaceNetwork as N; import os;"
    script = f"{made} print(N(['a']).name, flush=True); os.kill(os.getpid(), 9)"
    killed = subprocess.run(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, check=False
    )
    name = killed.stdout.strip()
    assert len(left(name)) == 3
    remove_left_over()
    assert left(name) == []


@needs_namespaces
def test_a_cluster_that_fails_in_its_block_leaves_nothing(tmp_path: Path):
    def fail_with_a_cluster() -> None:
        with running_cluster(tmp_path, nodes=1, has_namespaces=True) as cluster:
            cluster.wait_until_in_sync()
            raise RuntimeError("in the block")

    with pytest.raises(RuntimeError, match="in the block"):
        fail_with_a_cluster()
    assert left(f"ms{os.getpid()}-") == []


def test_without_rights_namespaces_are_refused_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(namespaces.shutil, "which", lambda name: f"/bin/{name}")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(SystemExit) as ended:
        main(["--network", "namespaces"])
    assert ended.value.code == 2
    assert "--network namespaces: network namespaces need root" in capsys.readouterr().err
