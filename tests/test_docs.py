"""The documentation is true: its code runs, its links lead somewhere, its derived pages are new."""

from __future__ import annotations

import contextlib
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

import millstream
from millstream.broker.groups.group import GROUP_ID_LENGTH_MAX
from millstream.broker.producers import PRODUCERS_MAX
from millstream.broker.transactions.coordinator import GROUPS_MAX
from millstream.config import MIB, BrokerConfig, KafkaConfig, LogConfig, NodeConfig
from millstream.kafka.handlers.fetch import WAIT_MS_MAX
from millstream.observe.metrics import LISTED_MAX
from millstream.testing.broker import running_broker
from millstream.wire.apis import APIS

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
SNIPPETS = [
    pytest.param(match[1], id=f"{page.relative_to(ROOT)}:{number}")
    for page in PAGES
    for number, match in enumerate(
        re.finditer(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL), start=1
    )
]


NODE = "localhost:9092"
"""What the documentation calls a node that runs; here it has a port of its own."""


THEIRS = ("-W", "ignore:read_text is deprecated", "-W", "ignore:open_text is deprecated")
"""What kafka-python itself is warned of."""


@pytest.mark.parametrize("code", SNIPPETS)
def test_the_code_in_the_documentation_runs(code: str, tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        if NODE in code:
            broker = stack.enter_context(running_broker(tmp_path / "node"))
            code = code.replace(NODE, broker.bootstrap)
        result = subprocess.run(
            [sys.executable, "-W", "error", *THEIRS, "-c", code],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    assert result.returncode == 0, result.stderr


def test_there_is_code_to_run() -> None:
    assert len(SNIPPETS) >= 15
    assert any(NODE in snippet.values[0] for snippet in SNIPPETS)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), target


def test_every_page_is_on_the_map() -> None:
    index = (ROOT / "docs/index.md").read_text()
    for page in ROOT.glob("docs/**/*.md"):
        name = str(page.relative_to(ROOT / "docs"))
        assert name == "index.md" or f"({name})" in index, name


GENERATED = runpy.run_path(str(ROOT / "tools/generate_docs.py"))["pages"]()


@pytest.mark.parametrize("name", GENERATED)
def test_the_derived_pages_are_what_make_docs_would_write(name: str) -> None:
    assert (ROOT / "docs/reference" / name).read_text() == GENERATED[name], "run `make docs`"


def test_the_public_names_are_all_described() -> None:
    described = (ROOT / "docs/reference/python.md").read_text()
    for name in millstream.__all__:
        assert f"`{name}" in described, name


def test_no_machine_and_no_registry_is_named_in_the_repository() -> None:
    tracked = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split("\0")
    words = ("pypi" + ".org", "/ro" + "ot/", "/work" + "/main", "registry.npm" + "js")
    for name in filter(None, tracked):
        data = (ROOT / name).read_bytes()
        assert not any(word.encode() in data for word in words), name


def words_of(page: str) -> str:
    """The text of a page, on one line."""
    return " ".join((ROOT / page).read_text().split())


def test_what_is_said_not_to_be_served_is_not_served() -> None:
    rows = re.findall(r"^\| ([0-9, -]+) \|", (ROOT / DIFFERENCES).read_text(), re.MULTILINE)
    keys = set()
    for part in ",".join(rows).split(","):
        first, _, last = part.strip().partition("-")
        keys |= set(range(int(first), int(last or first) + 1))
    assert len(keys) > 20
    assert not keys & APIS.keys()


DIFFERENCES = "docs/reference/kafka-differences.md"
SERVING = "docs/operating/serving.md"
BROKER, DOOR = BrokerConfig(), KafkaConfig()


@pytest.mark.parametrize(
    ("page", "text", "found", "said"),
    [
        ("README.md", "43 requests", len(APIS), 43),
        (DIFFERENCES, "ListTransactions is of version 0", APIS[66].versions.last, 0),
        (DIFFERENCES, "waits 100 ms", BROKER.group_initial_rebalance_delay_ms, 100),
        (DIFFERENCES, "10,000 members", BROKER.group_members_max, 10_000),
        (DIFFERENCES, "256 MiB by default", LogConfig().segment_bytes_max, 256 * MIB),
        (DIFFERENCES, "100,000 producers", PRODUCERS_MAX, 100_000),
        (DIFFERENCES, "1,000 groups", GROUPS_MAX, 1_000),
        (DIFFERENCES, "1,024 characters", GROUP_ID_LENGTH_MAX, 1_024),
        (DIFFERENCES, "5 minutes", WAIT_MS_MAX, 300_000),
        (SERVING, "25 seconds", NodeConfig().drain_ms_max, 25_000),
        (SERVING, "100 MiB", DOOR.request_size_max, 100 * MIB),
        (SERVING, "20,000 connections", DOOR.connections_max, 20_000),
        (SERVING, "512 MiB", DOOR.receive_bytes_max, 512 * MIB),
        (SERVING, "nothing is dropped after 10 s", DOOR.handshake_ms_max, 10_000),
        (SERVING, "half a request after 30 s", DOOR.request_ms_max, 30_000),
        (SERVING, "read its answers after 60 s", DOOR.output_ms_max, 60_000),
        (SERVING, "idle after 10 minutes", DOOR.idle_ms_max, 600_000),
        (SERVING, "100,000 partitions", BROKER.partitions_max, 100_000),
        ("docs/operating/monitoring.md", "first 1,000 partitions", LISTED_MAX, 1_000),
        ("docs/concepts/transactions.md", "15 minutes", BROKER.transaction_timeout_ms_max, 900_000),
        ("docs/concepts/groups.md", "seven days", BROKER.offsets_retention_ms, 7 * 86_400_000),
    ],
)
def test_the_numbers_in_the_documentation_are_those_of_the_code(
    page: str, text: str, found: int, said: int
) -> None:
    assert text in words_of(page)
    assert found == said, f"{page} says {text!r}"


def test_the_demo_tells_its_story_to_the_end(tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, ROOT / "examples/demo.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert "35,000 records of 35,000 clicks: 0 lost, 0 doubled" in result.stdout
    assert "That was it." in result.stdout
