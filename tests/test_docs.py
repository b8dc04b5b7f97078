"""The documentation is true: its code runs, its links lead somewhere, its derived pages are new."""

from __future__ import annotations

import contextlib
import os
import re
import runpy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

import millstream
from millstream import errors
from millstream.broker.groups.group import GROUP_ID_LENGTH_MAX
from millstream.broker.partition.producers.entry import BATCHES_REMEMBERED
from millstream.broker.partition.producers.states import PRODUCERS_MAX
from millstream.broker.problems import LISTED_MAX as PROBLEMS_MAX
from millstream.broker.problems import ProblemCode
from millstream.broker.topics.configs.value_format import VALUE_SCHEMA_SIZE_MAX
from millstream.broker.transactions.coordinator import GROUPS_MAX
from millstream.broker.transactions.publication import TRANSACTIONS_MAX
from millstream.cli.main import main as command_line
from millstream.config.keys import KEYS
from millstream.config.loader import load_configuration
from millstream.config.schema import (
    DAY_MS,
    KIB,
    MIB,
    BrokerConfig,
    HttpConfig,
    KafkaConfig,
    LogConfig,
    NodeConfig,
    StoreConfig,
    TelemetryConfig,
)
from millstream.errors import MillstreamError
from millstream.formats.layout.reasons import ITEMS_MAX, SKIPPED_DEPTH_MAX
from millstream.formats.layout.schema_plan import DEPTH_MAX, NODES_MAX
from millstream.node import DRAIN_SHARE
from millstream.observe.logging.event_writer import WAITING_BYTES_MAX
from millstream.observe.logging.formatter import TEXT_LENGTH_MAX
from millstream.observe.loop_watch import INTERVAL_SECONDS, LATE_TICKS_MIN
from millstream.observe.metrics.metric import LISTED_MAX
from millstream.observe.metrics.node_metrics import SECTIONS
from millstream.protocols.http.records import READ_BYTES_MAX, RECORDS_MAX
from millstream.protocols.http.records import WAIT_MS_MAX as WEB_WAIT_MS_MAX
from millstream.protocols.http.topics import TOPICS_MAX
from millstream.protocols.http.values import DEPTH_MAX as VALUE_DEPTH_MAX
from millstream.protocols.kafka.apis import APIS, PUBLISH_TRANSACTIONS_KEY
from millstream.servers.http.app import OPERATIONS
from millstream.servers.http.handlers.health import Health, health_operations
from millstream.servers.http.handlers.records import DELETION_SIZE_MAX
from millstream.servers.http.handlers.topics.topics import TOPIC_SIZE_MAX
from millstream.servers.http.routing.errors import STATUSES
from millstream.servers.kafka.handlers.fetch import WAIT_MS_MAX
from millstream.storage.compaction.plan import RECLAIM_MS_MAX, RECLAIM_RATIO_MIN
from millstream.storage.retention.key_deletions import PATTERN_SIZE_MAX
from millstream.testing.broker import running_broker

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
NODE_URL = "http://localhost:8080"
"""What the documentation calls a node that runs; here it has ports of its own."""


THEIRS = ("-W", "ignore:read_text is deprecated", "-W", "ignore:open_text is deprecated")
"""What kafka-python itself is warned of."""

SPARK = {
    "PYSPARK_PYTHON": sys.executable,
    "SPARK_LOCAL_IP": "127.0.0.1",
    "PYSPARK_SUBMIT_ARGS": "--master local[2] --conf spark.ui.enabled=false pyspark-shell",
    # Half the time of a process that lives for seconds goes into code that it does not run often.
    "JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}
"""What the documentation leaves to Spark, as it is best here."""


@pytest.mark.parametrize("code", SNIPPETS)
def test_the_code_in_the_documentation_runs(code: str, tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        if NODE in code or NODE_URL in code:
            broker = stack.enter_context(running_broker(tmp_path / "node"))
            code = code.replace(NODE, broker.bootstrap).replace(NODE_URL, broker.url)
        result = subprocess.run(
            [sys.executable, "-W", "error", *THEIRS, "-c", code],
            cwd=tmp_path,
            env={**os.environ, **SPARK},
            capture_output=True,
            text=True,
            timeout=240,
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


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(tmp_path / "site")],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert "open_store" in (tmp_path / "site/reference/api.html").read_text()


GENERATED = runpy.run_path(str(ROOT / "tools/generate_docs.py"))["pages"]()


@pytest.mark.parametrize("name", GENERATED)
def test_the_derived_pages_are_what_make_docs_would_write(name: str) -> None:
    assert (ROOT / "docs/reference" / name).read_text() == GENERATED[name], "run `make docs`"


def test_the_file_in_the_documentation_is_one_that_a_node_takes(tmp_path: Path) -> None:
    files = [
        text
        for page in (CONFIGURING, TELEMETRY)
        for text in re.findall(r"^```toml\n(.*?)^```", (ROOT / page).read_text(), re.M | re.S)
    ]
    assert len(files) > 1
    for text in files:
        (tmp_path / "some.toml").write_text(text)
        assert load_configuration(environment={}, config=str(tmp_path / "some.toml")).origins


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


def test_every_route_is_described() -> None:
    described = (ROOT / "docs/reference/http.md").read_text()
    health = Health(is_started=True)
    for one in [*health_operations(lambda: health, lambda: ()), *OPERATIONS]:
        path = one.path.replace(":path}", "}")
        assert f"`{one.method} {path}`" in described, path


def rows_of(page: str) -> set[str]:
    """The names that begin a row of a table in the reference."""
    text = (ROOT / "docs/reference" / page).read_text()
    return set(re.findall(r"^\| (?:&nbsp;)*`([^`]+)` \|", text, re.MULTILINE))


def errors_below(kind: type) -> Iterator[type]:
    for below in kind.__subclasses__():
        if below.__module__ == errors.__name__:
            yield below
            yield from errors_below(below)


def commands_below(command: click.Command, path: str) -> Iterator[str]:
    yield path
    if isinstance(command, click.Group):
        for name, below in command.commands.items():
            yield from commands_below(below, f"{path} {name}")


def test_every_metric_setting_error_and_command_has_its_entry() -> None:
    assert rows_of("metrics.md") == {one.name for part in SECTIONS for one in part.metrics}
    assert rows_of("config.md") >= {key.name for key in KEYS.values()}
    assert rows_of("errors.md") >= {one.__name__ for one in errors_below(MillstreamError)}
    headings = (ROOT / "docs/reference/cli.md").read_text()
    for command in commands_below(command_line, "millstream"):
        assert re.search(rf"^#+ `?{command}`?$", headings, re.MULTILINE), command


def test_every_problem_of_a_node_is_described() -> None:
    described = (ROOT / SERVING).read_text()
    for code in ProblemCode:
        ready = "no" if code.is_blocking else "yes"
        assert f"\n| `{code.value}` | {ready} | " in described, code


def test_every_status_that_an_error_has_is_described() -> None:
    described = (ROOT / "docs/reference/http.md").read_text()
    for status in STATUSES.values():
        assert f"\n| {status.value} | " in described, status


DIFFERENCES = "docs/reference/kafka-differences.md"
SERVING = "docs/operating/serving.md"
CONFIGURING = "docs/operating/configuring.md"
TELEMETRY = "docs/operating/telemetry.md"
RETENTION = "docs/concepts/retention.md"
HTTP = "docs/reference/http.md"
DELETING = "docs/guides/deleting.md"
TRANSACTIONS = "docs/concepts/transactions.md"
SCHEMAS = "docs/guides/schemas.md"
BROKER, KAFKA, STORE, WEB = BrokerConfig(), KafkaConfig(), StoreConfig(), HttpConfig()


@pytest.mark.parametrize(
    ("page", "text", "found", "said"),
    [
        ("README.md", "50 requests", sum(key < PUBLISH_TRANSACTIONS_KEY for key in APIS), 50),
        (DIFFERENCES, "waits 100 ms", BROKER.group_initial_rebalance_delay_ms, 100),
        (DIFFERENCES, "10,000 members", BROKER.group_members_max, 10_000),
        (DIFFERENCES, "256 MiB by default", LogConfig().segment_bytes_max, 256 * MIB),
        (DIFFERENCES, "100,000 producers", PRODUCERS_MAX, 100_000),
        (DIFFERENCES, "1,000 groups", GROUPS_MAX, 1_000),
        (DIFFERENCES, "1,024 characters", GROUP_ID_LENGTH_MAX, 1_024),
        (DIFFERENCES, "5 minutes", WAIT_MS_MAX, 300_000),
        (DIFFERENCES, "at most 64 MiB a second", STORE.cleaning_bytes_per_second_max, 64 * MIB),
        (RETENTION, "Every 30 seconds", STORE.upkeep_interval_ms, 30_000),
        (RETENTION, "at most 64 MiB a second", STORE.cleaning_bytes_per_second_max, 64 * MIB),
        (RETENTION, "at most 256 MiB", STORE.cleaning_memory_bytes_max, 256 * MIB),
        (RETENTION, "10,000 deletions by key", STORE.deletions_max, 10_000),
        (RETENTION, "at most 64 KiB", PATTERN_SIZE_MAX, 64 * KIB),
        (RETENTION, "a twentieth of a segment", RECLAIM_RATIO_MIN, 0.05),
        (RETENTION, "after a day at the latest", RECLAIM_MS_MAX, DAY_MS),
        (RETENTION, "one day by default", LogConfig().tombstone_ms, DAY_MS),
        (RETENTION, "At least half of the log", LogConfig().dirty_ratio_min, 0.5),
        (DELETING, "Up to 10,000 may wait", STORE.deletions_max, 10_000),
        (DELETING, "after a day at the latest", RECLAIM_MS_MAX, DAY_MS),
        (HTTP, "256 KiB", DELETION_SIZE_MAX, 256 * KIB),
        (SCHEMAS, "32,767 bytes", VALUE_SCHEMA_SIZE_MAX, 32_767),
        (SCHEMAS, "4,096", NODES_MAX, 4_096),
        (SCHEMAS, "fields inside fields | 32", DEPTH_MAX, 32),
        (SCHEMAS, "one value | 1,000,000", ITEMS_MAX, 1_000_000),
        (SCHEMAS, "no field asks for | 62", SKIPPED_DEPTH_MAX, 62),
        (HTTP, "longer than 30 s", WEB.body_ms_max, 30_000),
        (HTTP, "may be left out, and may have 256 KiB", TOPIC_SIZE_MAX, 256 * KIB),
        (HTTP, "16 MiB by default", WEB.append_size_max, 16 * MIB),
        (HTTP, "at most 128 deep", VALUE_DEPTH_MAX, 128),
        (HTTP, "1 to 10,000 of them", RECORDS_MAX, 10_000),
        (HTTP, "up to 60,000", WEB_WAIT_MS_MAX, 60_000),
        (HTTP, "headers in the response, up to 16 MiB", READ_BYTES_MAX, 16 * MIB),
        (HTTP, "topics in the response, 1 to 1,000", TOPICS_MAX, 1_000),
        (HTTP, "the last five requests", BATCHES_REMEMBERED, 5),
        (HTTP, "a day by default", BROKER.producer_id_expiration_ms, DAY_MS),
        (SERVING, "every 30 seconds", STORE.upkeep_interval_ms, 30_000),
        ("docs/operating/recovering.md", "within 30 seconds", STORE.upkeep_interval_ms, 30_000),
        (CONFIGURING, "more than 8,192 characters", TEXT_LENGTH_MAX, 8_192),
        (CONFIGURING, "Up to 4 MiB of lines", WAITING_BYTES_MAX, 4 * MIB),
        (TELEMETRY, "Up to 2,048 spans wait", TelemetryConfig().traces_waiting_max, 2_048),
        (TELEMETRY, "`flush_ms_max`, 3 seconds", TelemetryConfig().flush_ms_max, 3_000),
        (TELEMETRY, "a fifth of `drain_ms_max`", DRAIN_SHARE / 2, 0.2),
        (SERVING, "25 seconds", NodeConfig().drain_ms_max, 25_000),
        (SERVING, "up to 20 of them", PROBLEMS_MAX, 20),
        (SERVING, "three times in a row", LATE_TICKS_MIN, 3),
        (SERVING, "half a second apart", INTERVAL_SECONDS, 0.5),
        (SERVING, "`drain_notice_ms`, 0 by default", NodeConfig().drain_notice_ms, 0),
        (SERVING, "100 MiB", KAFKA.request_size_max, 100 * MIB),
        (SERVING, "20,000 connections", KAFKA.connections_max, 20_000),
        (SERVING, "512 MiB", KAFKA.receive_bytes_max, 512 * MIB),
        (SERVING, "nothing is dropped after 10 s", KAFKA.handshake_ms_max, 10_000),
        (SERVING, "half a request after 30 s", KAFKA.request_ms_max, 30_000),
        (SERVING, "read its answers after 60 s", KAFKA.output_ms_max, 60_000),
        (SERVING, "idle after 10 minutes", KAFKA.idle_ms_max, 600_000),
        (SERVING, "100,000 partitions", BROKER.partitions_max, 100_000),
        ("docs/operating/monitoring.md", "first 1,000 partitions", LISTED_MAX, 1_000),
        (TRANSACTIONS, "At most 10,000 transactions", TRANSACTIONS_MAX, 10_000),
        (TRANSACTIONS, "for 90 days", BROKER.publication_expiration_ms, 90 * DAY_MS),
        (TRANSACTIONS, "after seven days", BROKER.transactional_id_expiration_ms, 7 * DAY_MS),
        (TRANSACTIONS, "at most 16 MiB", LogConfig().batch_size_max, 16 * MIB),
        (TRANSACTIONS, "15 minutes", BROKER.transaction_timeout_ms_max, 900_000),
        ("docs/concepts/groups.md", "seven days", BROKER.offsets_retention_ms, 7 * 86_400_000),
    ],
)
def test_the_numbers_in_the_documentation_are_those_of_the_code(
    page: str, text: str, found: float, said: float
) -> None:
    assert text in words_of(page)
    assert found == said, f"{page} says {text!r}"


def test_the_demo_runs_to_its_end(tmp_path: Path) -> None:
    (tmp_path / "tmp").mkdir()
    result = subprocess.run(
        [sys.executable, ROOT / "examples/demo"],
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(tmp_path / "tmp")},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert result.returncode == 0, result.stdout[-3_000:] + result.stderr
    assert "35,000 records of 35,000 clicks: 0 lost, 0 duplicates" in result.stdout
    assert "35,000 counted in the topic, 35,000 in the table" in result.stdout
    assert "20,000 records of 20,000 clicks: 0 lost, 0 duplicates" in result.stdout
    assert "5: The console" in result.stdout
    assert (tmp_path / "millstream-demo.png").read_bytes().startswith(b"\x89PNG")
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["millstream-demo.png", "tmp"]
