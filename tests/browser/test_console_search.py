"""Search, readers, configs and decoded values in the console."""

from __future__ import annotations

import base64
import json

from msgspec import msgpack

from millstream.testing.broker import RunningBroker
from tests.browser.chromium import Chromium
from tests.browser.console import AVRO, append, avro, console, consumer, packed, put, texts, typing

RECORDS = "document.querySelectorAll('tr.record').length"


def fill(node: RunningBroker, topic: str) -> None:
    put(node, f"/v1/topics/{topic}", {"partitions": 2})
    for n in range(30):
        value = {"n": n, "customer": {"country": "DE" if n % 3 else "FR"}}
        record = {"key": f"k{n % 4}", "value": value, "timestamp": 1_763_240_000_000 + 1000 * n}
        append(node, topic, {**record, "partition": n % 2})


def test_records_are_found_by_a_field_with_keys_alone(
    node: RunningBroker, chromium: Chromium
) -> None:
    fill(node, "searched")
    with console(chromium, node.url, "#/topics/searched/search") as page:
        page.until("document.querySelector('.search-form')")
        with typing(page):
            assert page.run("document.activeElement.name") == "key"
            page.press("Tab", "Tab")
            page.write("customer.country")
            page.press("Tab")
            page.write("FR")
            page.press("Enter")
            page.until(f"{RECORDS} === 10")
        page.until_shown("10 records found among 30; everything was searched.")
        assert page.run("location.hash") == (
            "#/topics/searched/search?field=customer.country&value=FR"
        )
        page.press("j", "Enter")
        page.until("document.querySelector('.detail-row .json')")


def test_a_search_can_be_shared_by_its_address(node: RunningBroker, chromium: Chromium) -> None:
    fill(node, "shared")
    with console(chromium, node.url, "#/topics/shared/search?key=k1&partition=1") as page:
        page.until(f"{RECORDS} === 8")
        local = "new Date(1763240010000 - new Date().getTimezoneOffset() * 60000)"
        moment = page.run(f"{local}.toISOString().slice(0, 19)")
        page.run(
            f"{{ document.querySelector('[name=from]').value = '{moment}';"
            " document.querySelector('[name=key]').value = '';"
            " document.querySelector('[name=partition]').value = '';"
            " document.querySelector('.search-form').requestSubmit(); }"
        )
        page.until(f"{RECORDS} === 20")
        page.run(
            "{ document.querySelector('[name=field]').value = 'a..b';"
            " document.querySelector('.search-form').requestSubmit(); }"
        )
        page.until_shown("field must be names separated by dots, got 'a..b'")
        page.look(width=400, height=800, is_phone=True)
        assert page.run("document.documentElement.scrollWidth <= innerWidth")


def test_what_was_not_searched_yet_is_told_and_searched_on_request(
    node: RunningBroker, chromium: Chromium
) -> None:
    append(node, "many", *({"value": {"n": n}} for n in range(250)))
    with console(chromium, node.url, "#/topics/many/search?field=n") as page:
        page.until(f"{RECORDS} === 100")
        page.until_shown("searched up to partition 0, offset 100, at most 150 left")
        page.run("document.querySelector('.tail-more:not([hidden])').click()")
        page.until(f"{RECORDS} === 200")
        page.run("document.querySelector('.tail-more:not([hidden])').click()")
        page.until(f"{RECORDS} === 250")
        page.until_shown("everything was searched")


def test_avro_and_messagepack_are_decoded_by_the_format_of_the_topic(
    node: RunningBroker, chromium: Chromium
) -> None:
    put(node, "/v1/topics/readings", {"schema": {"format": "avro", "schema": AVRO}})
    framed = b"\x00\x00\x00\x00\x07" + avro(3)
    append(node, "readings", *({"value": packed(one)} for one in (avro(2), framed, b"\xff\xfe")))
    put(node, "/v1/topics/packed", {"schema": {"format": "msgpack"}})
    value = {
        "host": "Köln",
        "big": 2**63,
        "load": 0.5,
        "list": [None, True, -5],
        "raw": b"\x00\x01",
    }
    append(node, "packed", *({"value": packed(msgpack.encode(one))} for one in (value, 53)))
    with console(chromium, node.url, "#/topics/readings/tail") as page:
        page.until(f"{RECORDS} === 3")
        first, second, bad = texts(page, "td.value")
        assert json.loads(first) == {
            "sensor": "s-2",
            "count": 9007199254740995,
            "place": "Köln",
            "at": "2025-11-15T20:53:20.002Z",
        }
        assert '"sensor":"s-3"' in second
        assert "ff fe" in bad
        page.run("document.querySelectorAll('tr.record')[2].click()")
        page.until_shown("not Avro: the value ends too early")
        page.run("void (location.hash = '#/topics/packed/tail')")
        page.until(f"{RECORDS} === 2")
        shown, number = texts(page, "td.value")
        raw = {"base64": base64.b64encode(b"\x00\x01").decode()}
        assert json.loads(shown) == {**value, "raw": raw}
        assert number == "53", "though its one byte is the digit 5"


def test_readers_of_a_topic_are_shown_with_their_lag(
    node: RunningBroker, chromium: Chromium
) -> None:
    append(node, "read", *({"value": n} for n in range(12)))
    put(node, "/v1/groups/behind/offsets", {"topic": "read", "to": 5})
    with (
        consumer(node, "joined", "read"),
        console(chromium, node.url, "#/topics/read/readers") as page,
    ):
        page.until("document.querySelectorAll('tbody th a').length === 2")
        rows = page.run("[...document.querySelectorAll('tbody tr')].map(row => row.textContent)")
        assert any(row.startswith("behind7empty") for row in rows), rows
        page.until_shown("Nobody watches this topic live.")
        page.run("[...document.querySelectorAll('tbody th a')][0].click()")
        page.until("location.hash.startsWith('#/groups/')")


def test_configs_show_what_applies_and_where_it_is_from(
    node: RunningBroker, chromium: Chromium
) -> None:
    put(node, "/v1/topics/configured", {"configs": {"retention.ms": "1000"}})
    with console(chromium, node.url, "#/topics/configured/configs") as page:
        page.until("document.querySelectorAll('tbody tr').length > 20")
        first = texts(page, "tbody tr:first-child > *")
        assert first[:3] == ["retention.ms", "1000set", "604800000"]
        assert "cleanup.policy" in texts(page, "tbody th")
        with typing(page):
            page.write("segment")
            page.until("document.querySelectorAll('tbody tr').length < 10")
        page.look(width=400, height=800, is_phone=True)
        outside = (
            "[...document.querySelectorAll('tbody tr > :nth-child(2)')].filter(one =>"
            " one.getBoundingClientRect().right > innerWidth).length"
        )
        assert page.run(outside) == 0


def test_connections_and_quotas_are_listed(node: RunningBroker, chromium: Chromium) -> None:
    append(node, "connected", {"value": 1})
    put(node, "/v1/quotas", {"client_id": "etl", "rates": {"request_percentage": 50}})
    with (
        consumer(node, "g", "connected", client="reader-1"),
        console(chromium, node.url, "#/clients") as page,
    ):
        page.until_shown("reader-1", "127.0.0.1", "etl", "no limit")
        page.until_shown("Kafka", "HTTP")
