"""The live tail in a real browser: records live or page by page, and always as text."""

from __future__ import annotations

import pytest

from millstream.config.schema import Endpoint, HttpConfig, NodeConfig
from millstream.testing.broker import RunningBroker
from tests.browser.chromium import Chromium
from tests.browser.console import append, claim, console, consumer, put, texts, typing
from tests.browser.page import Page

NOTHING = "\u2013"
LAST = "[...document.querySelectorAll('tr.record .number')].at(-1)?.textContent"
LIVE = "document.querySelector('.tail-state').textContent === 'live'"


def until_rows(page: Page, count: int) -> None:
    page.until(f"document.querySelectorAll('tr.record').length === {count}")


def values(page: Page) -> list[str]:
    return texts(page, "tr.record td.value")


def test_records_are_shown_as_they_come_filtered_and_held_back(
    node: RunningBroker, chromium: Chromium
) -> None:
    append(node, "tailed", {"value": "before"})
    with console(chromium, node.url, "#/tail?topic=tailed&from=now") as page:
        page.until(LIVE)
        append(node, "tailed", {"key": "anna", "value": {"n": 1, "big": 9007199254740993}})
        append(node, "tailed", {"key": "ben", "value": "Plain"}, {"value": None})
        until_rows(page, 3)
        assert values(page) == ['{"n":1,"big":9007199254740993}', '"Plain"', NOTHING]
        # A filter looks at keys, values and headers, and marks what it found.
        with typing(page):
            page.write("ANNA")
        until_rows(page, 1)
        assert texts(page, "mark") == ["anna"]
        append(node, "tailed", {"value": "other"}, {"value": "x", "headers": {"from": "Johanna"}})
        until_rows(page, 2)
        assert texts(page, "mark") == ["anna", "anna"]
        assert texts(page, ".tail-count") == ["2 of 5 match"]
        with typing(page):
            page.press("Escape")
        until_rows(page, 5)
        # What comes during a pause is counted, and shown after it.
        page.press("p")
        append(node, "tailed", {"value": "held"}, {"value": "back"})
        page.until("document.querySelector('.tail-count').textContent.includes('2 new')")
        until_rows(page, 5)
        page.press("p")
        until_rows(page, 7)
        page.press("c")
        until_rows(page, 0)
        page.until_shown("Waiting for records.")


def test_a_record_can_be_opened(node: RunningBroker, chromium: Chromium) -> None:
    append(node, "opened", {"key": "k", "value": {"a": [1, {"b": 1.50}]}, "headers": {"h": "v"}})
    raw = {"base64": "aGVsbG8="}, {"base64": "AP8="}
    append(node, "opened", *({"value": one} for one in raw))
    with console(chromium, node.url, "#/tail?topic=opened") as page:
        until_rows(page, 3)
        # Bytes are text where they are UTF-8: most Kafka clients write it so.
        assert values(page)[1:] == ["hello", "2 B 00 ff"]
        page.press("j", "Enter")
        page.until("document.querySelector('.detail-row')")
        shown = texts(page, ".detail-row .json")
        assert shown == ["k", '{\n  "a": [\n    1,\n    {\n      "b": 1.5\n    }\n  ]\n}']
        assert texts(page, ".detail-row .headers dt") == ["h"]
        page.press("Enter")
        page.until("!document.querySelector('.detail-row')")


def test_a_topic_is_read_from_its_start_a_page_at_a_time(
    node: RunningBroker, chromium: Chromium
) -> None:
    for _ in range(3):
        append(node, "long", *({"key": f"k{n}", "value": n} for n in range(1_000)))
    with console(chromium, node.url, "#/tail?topic=long&from=earliest") as page:
        for page_number in (1, 2):
            page.until_shown(f"Continue: {3_000 - 1_000 * page_number:,} records to the end")
            page.until(f"{LAST} === '{page_number * 1_000 - 1:,}'")
            until_rows(page, 1_000)
            page.run("document.querySelector('.tail-more').click()")
        page.until(f"{LAST} === '2,999'")
        page.until(LIVE)
        until_rows(page, 1_000)
        assert page.run("document.querySelector('.tail-count').textContent").endswith("of 3,000")


def test_several_topics_and_what_retention_took_are_told(
    node: RunningBroker, chromium: Chromium
) -> None:
    append(node, "gone", *({"value": n} for n in range(10)))
    append(node, "beside", {"value": "b"})
    log = node.server.broker.store.get("gone", 0)
    node.run(log.evict_before(7))
    with console(chromium, node.url, "#/tail?topic=gone&from=0&partition=0") as page:
        until_rows(page, 3)
        assert texts(page, "tr.note") == ["gone/0, 0 to 6, was deleted: retention."]
        page.run("document.querySelector('.head input').focus()")
        page.write("beside")
        page.press("Enter")
        page.until("location.hash.includes('topic=gone&topic=beside')")
        page.run("location.hash = '#/tail?topic=gone&topic=beside'")
        until_rows(page, 4)
        assert sorted(set(texts(page, "td.place"))) == ["beside/0", "gone/0"]


def test_a_topic_that_is_not_there_cannot_be_watched(
    node: RunningBroker, chromium: Chromium
) -> None:
    with console(chromium, node.url, "#/tail?topic=nothing&from=now") as page:
        page.until_shown("cannot be watched", "topic 'nothing' does not exist")


def test_the_page_says_that_the_node_is_gone_and_goes_on_when_it_is_back(
    tmp_path_factory: pytest.TempPathFactory, chromium: Chromium
) -> None:
    any_port = Endpoint("127.0.0.1", 0)
    data = str(tmp_path_factory.mktemp("again"))
    first = RunningBroker(
        NodeConfig(data=data, kafka=any_port, http=any_port, http_server=HttpConfig())
    )
    first.start()
    url = first.url
    with console(chromium, url, "#/tail?topic=kept&from=now") as page:
        append(first, "kept", {"value": "before"})
        page.reload()
        page.until(LIVE)
        append(first, "kept", {"value": "one"})
        until_rows(page, 1)
        first.stop()
        page.until_shown("The node is not reachable.", "connection lost")
        again = NodeConfig(
            data=data, kafka=any_port, http=first.server.http, http_server=HttpConfig()
        )
        second = RunningBroker(again)
        second.start()
        try:
            append(second, "kept", {"value": "two"})
            page.until("document.getElementById('banner').hidden")
            until_rows(page, 2)
            assert values(page) == ['"one"', '"two"']
            page.until_shown("has resumed where it was")
            page.until(LIVE)
        finally:
            page.run("location.hash = '#/health'")
            second.stop()


HOSTILE = (
    '<img src=x onerror="window.hacked=1"><script>window.hacked=1</script>\u0000\u202e\x1b[31m'
)


def test_what_clients_write_is_shown_as_text(node: RunningBroker, chromium: Chromium) -> None:
    put(node, "/v1/queues/hostile")
    record = {"key": HOSTILE, "value": HOSTILE, "headers": {HOSTILE: HOSTILE}}
    append(node, "hostile", record, record)
    claim(node, "hostile", HOSTILE, 1)
    group = HOSTILE.replace("\u0000", "")
    with (
        consumer(node, group, "hostile", client="<b>bold</b>"),
        console(chromium, node.url, "#/tail?topic=hostile") as page,
    ):
        page.before_scripts("window.hacked = 0")
        until_rows(page, 2)
        shown = "<script>window.hacked=1</script>␀\\u202e␛[31m"
        assert texts(page, "tr.record td.key")[0].endswith(shown)
        page.press("j", "Enter")
        page.until("document.querySelector('.detail-row .headers')")
        assert texts(page, ".detail-row .headers dt")[0].endswith(shown)
        page.run("location.hash = '#/groups'")
        page.until("[...document.querySelectorAll('tbody th')].some(e => e.textContent[0] === '<')")
        page.run(
            "[...document.querySelectorAll('tbody a')].find(e => e.textContent[0] === '<').click()"
        )
        page.until_shown("<b>bold</b>")
        assert page.run("document.querySelector('h1').textContent").startswith("<img src=x")
        page.run("location.hash = '#/queues/hostile?state=leased'")
        page.until("document.querySelector('tr.record td:nth-child(4)')?.textContent[0] === '<'")
        page.run("location.hash = '#/topics/' + encodeURIComponent('<img src=x onerror=alert(1)>')")
        page.until_shown("<img src=x onerror=alert(1)>")
        found = page.run(
            "[window.hacked ?? 0,"
            " document.querySelectorAll('main img, main script, main b').length]"
        )
        assert found == [0, 0]
