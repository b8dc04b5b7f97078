"""A network of Linux network namespaces: packets are really dropped and delayed, by the kernel.

    this process ── veth ─┐                      ┌─ veth ── node-1
                          ├── router namespace ──┤
            etcd-0 ─ veth ┘                      └─ veth ── node-2

Every node and every member of etcd has a namespace with one address; clients stay in that of this
process. A router in a namespace of its own forwards between them. A cut from one party to another
is a rule of the router that drops such packets silently (`ip rule ... blackhole`), so it can be
one-way, and established connections are cut too: TCP sends again until it heals or gives up. Only
iproute2 is needed, no firewall.

Delay and loss are made by `netem` if the kernel has it. Otherwise the link has so little bandwidth
(`tbf`) that its queue fills: packets are late, and those that find no room are lost.

It needs root. Names carry the id of this process: what a killed one has left is removed when the
next network is made. The address range 198.18.0.0/15 is reserved for tests of networks (RFC 2544).
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterable, Mapping, Sequence

from millstream.testing.cluster.network import CLIENTS, ClusterNetwork, LinkRule, NetworkFailed
from millstream.testing.network_host import NetworkHost

SLOW_RATE = "256kbit"
SLOW_BURST = "8kb"
SLOW_LATENCY = "300ms"
"""Bandwidth of a slow link without netem, and how long packets wait for it before they are lost."""

COMMAND_SECONDS_MAX = 30.0
SUBNETS = 512
PARTIES_MAX = 200
_PRIORITY = 1000
"""Of the first rule: before that of the main table, 32766."""

_ROUTER = 1
_CLIENTS = 2
"""Last parts of addresses; parties have those that follow."""

_NAME = re.compile(r"ms([0-9]+)-[0-9]+(-|$)")
_numbers = itertools.count(1)


def why_unavailable() -> str | None:
    """Return why this process cannot make such a network; None if it can."""
    if sys.platform != "linux":
        return "network namespaces need Linux"
    if missing := [name for name in ("ip", "tc", "nsenter") if shutil.which(name) is None]:
        return f"{', '.join(missing)} not found: install iproute2 and util-linux"
    if os.geteuid() != 0:
        return "network namespaces need root"
    try:
        NamespaceNetwork(["probe"]).close()
    except NetworkFailed as error:
        return str(error)
    return None


class NamespaceNetwork(ClusterNetwork):
    """Namespaces of parties, and a router between them. Close it after use."""

    def __init__(self, parties: Sequence[str]) -> None:
        """`parties` are all but the clients. Raises `NetworkFailed` if that is not permitted."""
        if len(parties) > PARTIES_MAX:
            raise NetworkFailed(f"parties must be at most {PARTIES_MAX}, got {len(parties)}")
        self.name = f"ms{os.getpid()}-{next(_numbers)}"
        """Prefix of all namespaces, and name of the link of this process."""
        self._router = f"{self.name}-router"
        self._numbers = {
            name: number for number, name in enumerate((CLIENTS, *parties), start=_CLIENTS)
        }
        self._rules: dict[tuple[str, str], LinkRule] = {}
        self._slow: str | None = None
        self._lock = threading.Lock()
        remove_left_over()
        self._subnet = _free_subnet()
        try:
            self._make(parties)
            self._has_netem = self._try_netem()
        except NetworkFailed:
            self.close()
            raise

    def host(self, party: str) -> NetworkHost:
        """Return where processes of a party listen, and how they are started."""
        namespace = f"--net=/run/netns/{self._namespace(party)}"
        return NetworkHost(self._address(self._numbers[party]), ("nsenter", namespace, "--"))

    # Rules.

    def set_rules(self, rules: Mapping[tuple[str, str], LinkRule]) -> None:
        """Set rules by source and target. All slow links must have one party in common."""
        with self._lock:
            self._apply({**self._rules, **rules})

    def heal(self) -> None:
        """Remove all rules."""
        with self._lock:
            self._apply({})

    def _apply(self, rules: dict[tuple[str, str], LinkRule]) -> None:
        # A node is no party of a link to itself: its packets do not leave its namespace.
        rules = {link: rule for link, rule in rules.items() if link[0] != link[1]}
        is_cut = {link for link, rule in rules.items() if rule.is_cut}
        was_cut = {link for link, rule in self._rules.items() if rule.is_cut}
        slow = {link: rule for link, rule in rules.items() if rule.delay_s or rule.loss}
        party = _common_party(slow)
        _batch(
            ["ip", "-n", self._router],
            [
                *(f"rule add {self._cut(link)}" for link in sorted(is_cut - was_cut)),
                *(f"rule del {self._cut(link)}" for link in sorted(was_cut - is_cut)),
            ],
        )
        if self._slow is not None:
            self._shape(self._slow, None)
        if party is not None:
            self._shape(party, next(iter(slow.values())))
        self._slow = party
        self._rules = rules

    def _cut(self, link: tuple[str, str]) -> str:
        source, target = (self._numbers[name] for name in link)
        priority = _PRIORITY + source * (PARTIES_MAX + _CLIENTS) + target
        return f"priority {priority} iif v{source} to {self._address(target)}/32 blackhole"

    def _shape(self, party: str, rule: LinkRule | None) -> None:
        """Slow down everything that a party sends and is sent; without a rule, end that."""
        number = self._numbers[party]
        ends = [(self._router, f"v{number}")]
        if party == CLIENTS:
            _run("tc", "qdisc", *_discipline(self.name, rule, self._has_netem))
        else:
            ends.append((self._namespace(party), "eth0"))
        for namespace, device in ends:
            _run("tc", "-n", namespace, "qdisc", *_discipline(device, rule, self._has_netem))

    # Making and removing.

    def _make(self, parties: Sequence[str]) -> None:
        router = self._address(_ROUTER)
        subnet = f"{self._subnet}.0/24"
        _run("ip", "netns", "add", self._router)
        _batch(["ip", "-n", self._router], ["link set lo up", f"addr add {router}/32 dev lo"])
        forward = "/proc/sys/net/ipv4/ip_forward"
        _run(*self._enter(self._router), "sh", "-c", f"echo 1 > {forward}")
        for name in (CLIENTS, *parties):
            number = self._numbers[name]
            here = self.name if name == CLIENTS else "eth0"
            inside = ["ip"]
            link = f"link add {here} type veth peer name v{number} netns {self._router}"
            if name != CLIENTS:
                namespace = self._namespace(name)
                _run("ip", "netns", "add", namespace)
                inside += ["-n", namespace]
            own = self._address(number)
            _batch(
                inside,
                [
                    link,
                    *(["link set lo up"] if name != CLIENTS else []),
                    f"link set {here} up",
                    f"addr add {own}/32 dev {here}",
                    f"route add {router} dev {here}",
                    f"route add {subnet} via {router} src {own}",
                ],
            )
            _batch(
                ["ip", "-n", self._router],
                [f"link set v{number} up", f"route add {own}/32 dev v{number}"],
            )

    def _try_netem(self) -> bool:
        """Return whether the kernel can delay packets."""
        device = f"v{_CLIENTS}"
        command = ["tc", "-n", self._router, "qdisc", "add", "dev", device, "root", "netem"]
        try:
            _run(*command, "delay", "1ms")
        except NetworkFailed:
            return False
        _run("tc", "-n", self._router, "qdisc", "del", "dev", device, "root")
        return True

    def close(self) -> None:
        """Remove all namespaces and links. Processes in them should have ended."""
        _remove(self.name)

    def _namespace(self, party: str) -> str:
        return f"{self.name}-{party}"

    def _address(self, number: int) -> str:
        return f"{self._subnet}.{number}"

    @staticmethod
    def _enter(namespace: str) -> tuple[str, ...]:
        return ("nsenter", f"--net=/run/netns/{namespace}", "--")


def remove_left_over() -> None:
    """Remove what processes have left that do not run any more."""
    prefixes = {
        match[0].removesuffix("-")
        for name in (*_namespaces(), *_links())
        if (match := _NAME.match(name)) and not os.path.exists(f"/proc/{match[1]}")
    }
    for prefix in prefixes:
        _remove(prefix)


def _remove(prefix: str) -> None:
    for name in _namespaces():
        if name.startswith(f"{prefix}-"):
            with contextlib.suppress(NetworkFailed):  # Another process removes it too.
                _run("ip", "netns", "del", name)
    if prefix in _links():
        with contextlib.suppress(NetworkFailed):  # It goes with its other end.
            _run("ip", "link", "del", prefix)


def _namespaces() -> list[str]:
    return [line.split()[0] for line in _run("ip", "netns", "list").splitlines() if line.strip()]


def _links() -> list[str]:
    return os.listdir("/sys/class/net")


def _free_subnet() -> str:
    """Return the first three parts of addresses that this machine has no route to."""
    routes = _run("ip", "route", "show", "table", "all")
    for number in range(SUBNETS):
        chosen = (os.getpid() + number) % SUBNETS
        subnet = f"198.{18 + chosen // 256}.{chosen % 256}"
        if f"{subnet}." not in routes:
            return subnet
    raise NetworkFailed("all of 198.18.0.0/15 is in use on this machine")


def _common_party(links: Iterable[tuple[str, str]]) -> str | None:
    """Return a party of all links; None if there are no links."""
    pairs = list(links)
    if not pairs:
        return None
    for name in pairs[0]:
        if all(name in pair for pair in pairs):
            return name
    raise ValueError(f"slow links must have one party in common, got {sorted(pairs)}")


def _discipline(device: str, rule: LinkRule | None, has_netem: bool) -> list[str]:  # noqa: FBT001
    if rule is None:
        return ["del", "dev", device, "root"]
    command = ["replace", "dev", device, "root"]
    if has_netem:
        delay = f"{rule.delay_s * 1000:.0f}ms"
        return [*command, "netem", "delay", delay, "loss", f"{rule.loss * 100:g}%"]
    shape = ["rate", SLOW_RATE, "burst", SLOW_BURST, "latency", SLOW_LATENCY]
    return [*command, "tbf", *shape]


def _batch(command: Sequence[str], lines: Sequence[str]) -> None:
    if lines:
        _run(*command, "-batch", "-", text="\n".join(lines))


def _run(*command: str, text: str = "") -> str:
    try:
        ended = subprocess.run(  # noqa: S603 - our own commands.
            command,
            input=text,
            capture_output=True,
            text=True,
            timeout=COMMAND_SECONDS_MAX,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NetworkFailed(f"{' '.join(command)}: {error}") from error
    if ended.returncode:
        said = " ".join(ended.stderr.split())
        raise NetworkFailed(f"{' '.join(command)}: {said or f'status {ended.returncode}'}")
    return ended.stdout
