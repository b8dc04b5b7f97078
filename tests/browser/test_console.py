"""The console in a real browser, with a real node and real clients."""

from __future__ import annotations

import pytest

from millstream.testing.broker import RunningBroker, running_broker
from tests.browser.chromium import Chromium
from tests.browser.console import (
    append,
    claim,
    commit,
    console,
    consumer,
    go,
    put,
    texts,
    writing,
)
from tests.servers.http.calls import ask

CHART = """[...document.querySelectorAll('.chart')]
    .find(one => one.querySelector('h3').textContent === 'NAME')"""


def test_the_overview_shows_rates_while_somebody_writes(
    node: RunningBroker, chromium: Chromium
) -> None:
    appended = CHART.replace("NAME", "Appended records")
    with writing(node, "busy"), console(chromium, node.url) as page:
        page.until(f"/^[1-9]/.test(({appended}).querySelector('.chart-value').textContent)")
        page.until(f"({appended}).querySelector('.line').getAttribute('d').includes('L')")
        latency = CHART.replace("NAME", "Commit latency")
        page.until(f"({latency}).querySelector('.chart-value').textContent.endsWith('ms')")
        page.until(
            "[...document.querySelectorAll('tbody tr')].some(row =>"
            " row.textContent.includes('busy') && /^[1-9]/.test(row.cells[1].textContent))"
        )
        spoken = page.run(f"({appended}).querySelector('[role=img]').ariaLabel")
        assert spoken.startswith("Appended records, last 5 minutes. records: now ")
        # By keys, a chart tells moment by moment.
        page.run(f"({appended}).querySelector('[role=img]').focus()")
        page.press("ArrowLeft", "ArrowLeft")
        page.until(f"/^..:..:..$/.test(({appended}).querySelector('.chart-time').textContent)")
        page.until("document.querySelectorAll('.cursor line').length > 4")  # All of them do.


def test_topics_are_listed_sorted_and_searched(node: RunningBroker, chromium: Chromium) -> None:
    for name, count in (("list-small", 1), ("list-large", 30), ("list-middle", 10)):
        append(node, name, *({"value": "x" * 100} for _ in range(count)))
    with console(chromium, node.url, "#/topics?q=list-") as page:
        page.until("document.querySelectorAll('tbody tr').length === 3")
        assert texts(page, "tbody th") == ["list-large", "list-middle", "list-small"]
        page.run(
            "[...document.querySelectorAll('thead button')]"
            ".find(one => one.textContent.startsWith('Records')"
            " && !one.textContent.includes('/s')).click()"
        )
        assert texts(page, "tbody th") == ["list-large", "list-middle", "list-small"]
        page.run("document.querySelector('th[aria-sort] button').click()")
        assert texts(page, "tbody th") == ["list-small", "list-middle", "list-large"]
        assert page.run("document.querySelector('th[aria-sort]').ariaSort") == "ascending"
        page.run("document.querySelectorAll('tbody td')[1].click()")
        page.until("location.hash === '#/topics/list-small'")
        page.until_shown("list-small", "fsync")


def test_segments_are_drawn_and_listed(node: RunningBroker, chromium: Chromium) -> None:
    configs = {"segment.bytes": "4096"}
    put(node, "/v1/topics/cut", {"partitions": 2, "configs": configs})
    for _ in range(12):
        append(node, "cut", {"value": "x" * 1_500, "partition": 0})
    append(node, "cut", {"value": "y", "partition": 1})
    partitions = ask(node.url, "GET", "/v1/topics/cut").json["partitions"]
    count = sum(one["segments"] for one in partitions)
    assert count > 3
    with console(chromium, node.url, "#/topics/cut/segments") as page:
        page.until(f"document.querySelectorAll('.segment').length === {count}")
        assert page.run("document.querySelectorAll('.strip').length") == 2
        assert page.run("document.querySelectorAll('.segment.active').length") == 2
        rows = page.run(
            "[...document.querySelectorAll('tbody tr')].map(row => row.cells[2].textContent)"
        )
        assert len(rows) == count
        assert str(partitions[0]["head"]) in rows
        widths = page.run("[...document.querySelectorAll('.strip')].map(one => one.offsetWidth)")
        assert widths[0] > 4 * widths[1]
        page.run("document.querySelector('.segment').click()")
        assert page.run("document.activeElement.cells[1].textContent") == "0"


def test_a_group_shows_its_members_and_its_lag(node: RunningBroker, chromium: Chromium) -> None:
    put(node, "/v1/topics/lagging", {"partitions": 2})
    append(node, "lagging", *({"value": n, "partition": 0} for n in range(42)))
    append(node, "lagging", {"value": 0, "partition": 1})
    with (
        consumer(node, "billing", "lagging", client="billing-1") as joined,
        console(chromium, node.url, "#/groups") as page,
    ):
        commit(joined, "lagging", 0, 30)
        commit(joined, "lagging", 1, 1)
        page.until("document.querySelector('tbody th a')?.textContent === 'billing'")
        page.until("document.querySelector('tbody tr').cells[1].textContent === '12'")
        page.run("document.querySelector('tbody th a').click()")
        page.until_shown("stable", "billing-1", "lagging/0, lagging/1")
        page.until(
            "[...document.querySelectorAll('.group-offsets tbody tr')]"
            ".map(row => row.cells[2].textContent).join() === '12,0'"
        )
        widths = page.run("[...document.querySelectorAll('.bar-fill')].map(one => one.style.width)")
        assert widths == ["100%", "0%"]
        commit(joined, "lagging", 0, 42)
        page.until("document.querySelector('.figure dd').textContent === '0'")


def test_a_queue_shows_its_jobs_and_claims_none(node: RunningBroker, chromium: Chromium) -> None:
    put(node, "/v1/queues/mail")
    append(node, "mail", *({"key": f"k{n}", "value": {"to": f"p{n}"}} for n in range(62)))
    claim(node, "mail", "mailer-7", 2)
    with console(chromium, node.url, "#/queues/mail") as page:
        page.until_shown("Ready 60", "Leased 2")
        page.until("document.querySelectorAll('tr.record').length === 50")
        page.run("document.querySelector('.more button').click()")
        page.until("document.querySelectorAll('tr.record').length === 60")
        page.run("document.querySelectorAll('tr.record')[0].click()")
        page.until("document.querySelector('.detail-row .json .name').textContent === '\"to\"'")
        go(page, "#/queues/mail?state=leased")
        page.until("document.querySelectorAll('tr.record').length === 2")
        page.until_shown("mailer-7", "s left")
        assert "mail-dead" in texts(page, ".card a")
    queue = ask(node.url, "GET", "/v1/queues/mail").json
    assert (queue["ready"], queue["leased"], queue["delivered"]) == (60, 2, 2)


def test_health_tells_what_the_node_is_and_what_it_runs_on(
    node: RunningBroker, chromium: Chromium
) -> None:
    with console(chromium, node.url, "#/health") as page:
        page.until_shown("No problems.", node.bootstrap, node.url, node.data, "Kernel")
        go(page, "#/pipelines")
        page.until_shown("No pipelines yet", "millstream pipeline run pipeline.toml")


def test_a_node_without_topics_says_how_there_comes_to_be_one(
    tmp_path_factory: pytest.TempPathFactory, chromium: Chromium
) -> None:
    with (
        running_broker(tmp_path_factory.mktemp("empty")) as node,
        console(chromium, node.url, "#/topics") as page,
    ):
        page.until_shown("No topics yet", f"curl -X POST {node.url}/v1/topics/orders/records")
        go(page, "#/groups")
        page.until_shown("No consumer groups yet")
        go(page, "#/queues")
        page.until_shown("No queues yet")
        go(page, "#/topics")
        page.until_shown("No topics yet")
        append(node, "orders", {"key": "k1", "value": {"n": 1}})
        page.until("document.querySelector('tbody th')?.textContent === 'orders'")


@pytest.mark.parametrize("thing", ["topics", "groups", "queues"])
def test_what_is_not_there_is_said_so(node: RunningBroker, chromium: Chromium, thing: str) -> None:
    with console(chromium, node.url, f"#/{thing}/nothing") as page:
        page.until_shown("Not found", "nothing")
        page.run("document.querySelector('.state a').click()")
        page.until(f"location.hash === '#/{thing}'")
