"""`millstream transactions`: who holds back readers of committed records, and how to end it."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from click.testing import CliRunner, Result

from millstream.cli.main import main
from millstream.testing.broker import RunningBroker, running_broker
from tests.servers.http.calls import ask
from tests.spark.topics import create, values
from tests.spark.transactions import an_open_transaction

ID = "billing/7 a"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    with running_broker(tmp_path_factory.mktemp("node")) as broker:
        yield broker


@pytest.fixture
def topic(node: RunningBroker, request: pytest.FixtureRequest) -> str:
    name: str = request.node.name[:100]
    create(node, name)
    return name


def run(node: RunningBroker, *words: str) -> Result:
    return CliRunner().invoke(main, ["transactions", *words, "--server", node.url])


def test_an_open_transaction_is_listed_described_and_aborted(node, topic):
    with an_open_transaction(node, topic, [b"a"], ID) as producer:
        (row,) = json.loads(run(node, "list", "--open", "--json").stdout)["transactions"]
        assert (row["id"], row["state"], row["partitions"]) == (ID, "ongoing", 1)
        assert row["open_ms"] >= 0
        assert ID in run(node, "list").stdout
        described = json.loads(run(node, "describe", ID, "--json").stdout)
        assert described["partitions"] == [{"topic": topic, "partition": 0}]
        assert topic in run(node, "describe", ID).stdout

        refused = run(node, "abort", ID)
        assert refused.exit_code != 0, "it was not confirmed"
        assert json.loads(run(node, "list", "--open", "--json").stdout)["transactions"]
        aborted = run(node, "abort", ID, "--yes")
        assert (aborted.exit_code, aborted.stdout) == (0, f"{ID}: complete_abort\n")
        assert values(node, topic) == []
        assert json.loads(run(node, "list", "--open", "--json").stdout)["transactions"] == []
        assert "no open transactions" in run(node, "list", "--open").stderr
        with pytest.raises(Exception, match=r"(?i)fenced|state|epoch"):
            producer.commit_transaction(10)


def test_an_unknown_transactional_id_is_an_error_that_names_it(node):
    for words in (["describe", "nobody"], ["abort", "nobody", "--yes"]):
        result = run(node, *words)
        assert result.exit_code == 1
        assert "'nobody' is unknown" in result.stderr


def test_ids_are_listed_page_by_page(node, topic):
    for number in range(3):
        with an_open_transaction(node, topic, [b"a"], f"paged-{number}"):
            run(node, "abort", f"paged-{number}", "--yes")
    first = ask(node.url, "GET", "/v1/transactions?limit=2&after=paged-").json
    assert [each["id"] for each in first["transactions"]] == ["paged-0", "paged-1"]
    second = ask(node.url, "GET", f"/v1/transactions?limit=2&after={first['next']}").json
    assert [each["id"] for each in second["transactions"]] == ["paged-2"]
    assert second["next"] is None
