"""The network between the parties of a test cluster: which links are cut, and which are slow.

Each party has a name: `clients`, `node-1`, `etcd-0`. A rule applies to what goes from one party to
another, so a cut can be one-way. Two kinds of networks obey: proxies on the loopback address
(`proxy.py`), and network namespaces with routes between them (`namespaces.py`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

CLIENTS = "clients"


class NetworkFailed(Exception):
    """The network cannot be made on this machine."""


@dataclass(frozen=True, slots=True)
class LinkRule:
    """What happens to what one party sends to another."""

    is_cut: bool = False
    delay_s: float = 0.0
    loss: float = 0.0
    """Share of the chunks or packets, from 0 to 1."""

    def __post_init__(self) -> None:
        if self.delay_s < 0:
            raise ValueError(f"delay_s must be at least 0, got {self.delay_s}")
        if not 0 <= self.loss <= 1:
            raise ValueError(f"loss must be between 0 and 1, got {self.loss}")


OPEN = LinkRule()
CUT = LinkRule(is_cut=True)


def node_name(node_id: int) -> str:
    """Return the name of a node as a party of the network."""
    return f"node-{node_id}"


def etcd_name(index: int) -> str:
    """Return the name of a member of etcd as a party of the network."""
    return f"etcd-{index}"


class ClusterNetwork(ABC):
    """Links between parties, all of them open at first. Its methods can be called in any thread."""

    @abstractmethod
    def set_rules(self, rules: Mapping[tuple[str, str], LinkRule]) -> None:
        """Set rules by source and target. They apply when this returns."""

    @abstractmethod
    def heal(self) -> None:
        """Remove all rules."""

    @abstractmethod
    def close(self) -> None:
        """Remove the network."""

    def cut(self, first: str, second: str) -> None:
        """Cut two parties off from each other, in both directions."""
        self.set_rules({(first, second): CUT, (second, first): CUT})

    def cut_one_way(self, source: str, target: str) -> None:
        """Stop what `source` sends to `target`; the other direction stays open."""
        self.set_rules({(source, target): CUT})

    def slow_down(self, first: str, second: str, *, delay_s: float, loss: float = 0.0) -> None:
        """Delay what two parties send to each other, and lose a share of it."""
        rule = LinkRule(delay_s=delay_s, loss=loss)
        self.set_rules({(first, second): rule, (second, first): rule})
