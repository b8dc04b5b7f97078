"""Actions in the console: what the node lets it do, with clear messages, by mouse and by keys."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from millstream.config.schema import ConsoleAccess, HttpConfig
from millstream.testing.broker import RunningBroker, running_broker
from tests.browser.chromium import Chromium
from tests.browser.console import append, bury, console, consumer, put, texts
from tests.browser.page import Page
from tests.servers.http.calls import ask

PHONE = {"width": 400, "height": 800, "is_phone": True}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    config = HttpConfig(console=ConsoleAccess.WRITE)
    with running_broker(tmp_path_factory.mktemp("node"), http_server=config) as running:
        yield running


@pytest.fixture(scope="module")
def reading(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    with running_broker(tmp_path_factory.mktemp("reading")) as running:
        yield running


def button(text: str) -> str:
    return (
        "[...document.querySelectorAll('button')].find(one =>"
        f" one.textContent.trim() === {json.dumps(text)} && one.checkVisibility())"
    )


def click(page: Page, text: str) -> None:
    page.until(f"!!({button(text)}) && !({button(text)}).disabled")
    page.run(f"({button(text)}).click()")


def enter(page: Page, **values: str) -> None:
    """Fill the fields of the open form."""
    page.until("document.querySelector('#form[open] form')")
    for name, value in values.items():
        page.run(
            f"{{ const field = document.querySelector('#form [name={name}]');"
            f" field.value = {json.dumps(value)};"
            " field.dispatchEvent(new Event('input', { bubbles: true })); }"
        )


def type_name(page: Page, name: str) -> None:
    page.run("document.querySelector('#form [aria-label^=Type]').focus()")
    page.write(name)


def until_refused(page: Page, *words: str) -> None:
    """Wait until the form shows an error; it stays open."""
    page.until("document.querySelector('#form[open] .form-error:not([hidden])')")
    shown = page.run("document.querySelector('#form .form-error').textContent")
    assert all(word in shown for word in words), shown


def until_done(page: Page, text: str) -> None:
    """Wait until the form is closed and the page says what was done."""
    page.until("!document.querySelector('#form').open")
    page.until(f"document.querySelector('#notices').textContent.includes({json.dumps(text)})")


def test_a_record_is_produced_by_keys_alone(node: RunningBroker, chromium: Chromium) -> None:
    put(node, "/v1/topics/typed", {"partitions": 2})
    with console(chromium, node.url, "#/topics/typed") as page:
        page.until(f"!!({button('Produce…')})")
        page.run(f"({button('Produce…')}).focus()")
        page.press("Enter")
        page.until("document.activeElement.name === 'key'")
        page.write("k1")
        page.press("Tab", "Tab")
        page.until("document.activeElement.name === 'value'")
        page.write('{"n": 12345678901234567890, "x": 1.50}')
        page.press("Tab")
        page.write("trace=abc\nempty=")
        page.press("Tab")
        page.write("1")
        page.press("Enter")
        until_done(page, "Appended to partition 1 at offset 0.")
    answer = ask(node.url, "GET", "/v1/topics/typed/records?partition=1")
    [record] = answer.json["records"]
    assert (record["key"], record["headers"]) == ("k1", {"trace": "abc", "empty": ""})
    assert b'{"n": 12345678901234567890, "x": 1.50}' in answer.body, "as it was typed"


def test_text_and_tombstones_can_be_produced(node: RunningBroker, chromium: Chromium) -> None:
    put(node, "/v1/topics/kinds")
    with console(chromium, node.url, "#/topics/kinds") as page:
        for form, value in (("text", "not JSON: Köln"), ("none", "")):
            click(page, "Produce…")
            enter(page, key="k", format=form, value=value)
            click(page, "Produce")
            page.until("!document.querySelector('#form').open")
        click(page, "Produce…")
        enter(page, value="{no json")
        click(page, "Produce")
        until_refused(page, "The value is not JSON")
        enter(page, value="1", partition="7")
        click(page, "Produce")
        until_refused(page, "partition of kinds must be between 0 and 0, got 7")
    text, tombstone = ask(node.url, "GET", "/v1/topics/kinds/records").json["records"]
    assert text["value"] == {"base64": "bm90IEpTT046IEvDtmxu"}
    assert tombstone["value"] is None


def test_a_topic_is_created_changed_and_deleted(node: RunningBroker, chromium: Chromium) -> None:
    append(node, "other", {"value": 1})
    with console(chromium, node.url, "#/topics") as page:
        click(page, "New topic…")
        enter(page, name="bad name!", configs="retention.ms=86400000")
        click(page, "Create")
        until_refused(page, "bad name!")
        enter(page, name="other")
        click(page, "Create")
        until_refused(page, "Topic other exists already.")
        enter(page, name="made", partitions="3", durability="disk")
        click(page, "Create")
        until_done(page, "Created topic made.")
        page.until("location.hash === '#/topics/made'")
        click(page, "Add partitions…")
        enter(page, partitions="2")
        click(page, "Change")
        until_refused(page, "2")
        enter(page, partitions="4")
        click(page, "Change")
        until_done(page, "made has 4 partitions.")
        page.run("void (location.hash = '#/topics/made/configs')")
        page.until("!!document.querySelector('[aria-label=\"Edit retention.ms\"]')")
        page.run("document.querySelector('[aria-label=\"Edit retention.ms\"]').click()")
        enter(page, value="never")
        click(page, "Change")
        until_refused(page, "retention.ms must be")
        enter(page, value="60000")
        click(page, "Change")
        until_done(page, "Changed retention.ms of made.")
        page.until(
            "[...document.querySelectorAll('tbody tr')].some(row =>"
            " row.textContent.startsWith('retention.ms60000set604800000'))"
        )
        made = ask(node.url, "GET", "/v1/topics/made").json
        assert (made["partition_count"], made["durability"]) == (4, "disk")
        assert made["configs"]["retention.ms"] == "60000"
        click(page, "Delete…")
        page.until("document.querySelector('#form[open] [type=submit]').disabled")
        type_name(page, "mad")
        assert page.run("document.querySelector('#form [type=submit]').disabled") is True
        page.write("e")
        click(page, "Delete topic")
        until_done(page, "Deleted topic made.")
        page.until("location.hash === '#/topics'")
    assert ask(node.url, "GET", "/v1/topics/made").status == 404
    assert ask(node.url, "GET", "/v1/topics/other").status == 200


def test_offsets_are_reset_after_a_preview(node: RunningBroker, chromium: Chromium) -> None:
    append(node, "numbers", *({"value": n} for n in range(10)))
    put(node, "/v1/groups/readers/offsets", {"topic": "numbers", "to": 8})
    with console(chromium, node.url, "#/groups/readers") as page:
        page.until("document.querySelectorAll('.group-offsets tbody tr').length === 1")
        click(page, "Reset offsets…")
        enter(page, to="offset", offset="11")
        click(page, "Preview")
        until_refused(page, "11")
        enter(page, offset="3")
        click(page, "Preview")
        page.until("document.querySelector('.form-preview table')")
        assert texts(page, ".form-preview tbody td") == ["8", "3", "7"]
        group = ask(node.url, "GET", "/v1/groups/readers").json
        assert group["offsets"][0]["committed"] == 8, "a preview changes nothing"
        enter(page, to="earliest")  # Another target needs another preview.
        assert page.run(f"!!({button('Reset offsets')})") is False
        click(page, "Preview")
        page.until("document.querySelector('.form-preview table')")
        click(page, "Reset offsets")
        until_done(page, "Reset 1 partition of readers.")
        page.until("document.querySelector('.figure dd').textContent === '10'")
        click(page, "Delete…")
        type_name(page, "readers")
        click(page, "Delete group")
        until_done(page, "Deleted group readers.")
    assert ask(node.url, "GET", "/v1/groups/readers").status == 404


def test_a_group_with_members_is_not_reset(node: RunningBroker, chromium: Chromium) -> None:
    append(node, "busy", {"value": 1})
    with (
        consumer(node, "at-work", "busy"),
        console(chromium, node.url, "#/groups/at-work") as page,
    ):
        page.until("document.querySelectorAll('.group-offsets tbody tr').length === 1")
        click(page, "Reset offsets…")
        click(page, "Preview")
        until_refused(page, "at-work", "members")


def test_dead_letters_are_seen_redriven_and_purged(node: RunningBroker, chromium: Chromium) -> None:
    bury(node, "work", 3)
    with console(chromium, node.url, "#/queues/work") as page:
        page.until_shown("Dead 3")
        page.run(
            "[...document.querySelectorAll('.tabs a')].find(one =>"
            " one.textContent === 'Dead 3').click()"
        )
        page.until("document.querySelectorAll('tr.record').length === 3")
        page.run("document.querySelectorAll('tr.record')[1].click()")
        page.until_shown("nacked", "partition 0, offset 1", "work-dead")
        click(page, "Redrive…")
        click(page, "Redrive")
        until_done(page, "Moved 3 dead letters back to work.")
        page.until_shown("Ready 3", "There are no dead letters.")
    bury(node, "waste", 2)
    with console(chromium, node.url, "#/queues/waste?state=dead") as page:
        page.look(**PHONE)
        page.until("document.querySelectorAll('tr.record').length === 2")
        outside = (
            "[...document.querySelectorAll('tr.record .value')].filter(one => {"
            " const box = one.getBoundingClientRect();"
            " return box.width < 40 || box.left < 0 || box.right > innerWidth; }).length"
        )
        assert page.run(outside) == 0
        click(page, "Purge…")
        type_name(page, "waste")
        click(page, "Purge")
        until_done(page, "Deleted 2 dead letters of waste.")
        page.until_shown("There are no dead letters.")
    assert ask(node.url, "GET", "/v1/queues/waste/dead_letters").json["count"] == 0


def test_quotas_are_set_and_removed(node: RunningBroker, chromium: Chromium) -> None:
    with console(chromium, node.url, "#/clients") as page:
        page.until_shown("Nobody has a quota.")
        click(page, "New quota…")
        click(page, "Set")
        until_refused(page, "A quota needs a user or a client id.")
        enter(page, client_id="etl", producer_byte_rate="-1")
        click(page, "Set")
        until_refused(page, "producer_byte_rate")
        enter(page, producer_byte_rate="1000000")
        click(page, "Set")
        until_done(page, "Set the quota.")
        page.until_shown("etl", "1.00 M")
        click(page, "Remove")
        page.run("document.querySelector('#form[open] [type=submit]').click()")
        until_done(page, "Removed the quotas of client id etl, user any.")
    assert ask(node.url, "GET", "/v1/quotas").json["quotas"] == []


VIEWS = [
    "#/topics",
    "#/topics/seen",
    "#/topics/seen/configs",
    "#/groups/g",
    "#/queues/q?state=dead",
]


def test_a_console_that_reads_shows_no_action(reading: RunningBroker, chromium: Chromium) -> None:
    append(reading, "seen", {"value": 1})
    put(reading, "/v1/groups/g/offsets", {"topic": "seen", "to": "earliest"})
    bury(reading, "q", 1)
    with console(chromium, reading.url) as page:
        page.until("document.getElementById('node-text').textContent.includes('ready')")
        for view in [*VIEWS, "#/clients"]:
            page.run(f"void (location.hash = {json.dumps(view)})")
            page.until("document.querySelector('.stage') && !document.querySelector('.loading')")
            visible = (
                "[...document.querySelectorAll('.writes')].filter(one => one.checkVisibility())"
            )
            assert page.run(f"{visible}.length") == 0, view
        # A page that was opened before the setting changed is refused by the node.
        page.run("document.body.classList.add('can-write')")
        page.run("void (location.hash = '#/topics/seen')")
        click(page, "Produce…")
        enter(page, value="1")
        click(page, "Produce")
        until_refused(page, "http.console = write")
    assert ask(reading.url, "GET", "/v1/topics/seen").json["count"] == 1


def test_a_form_is_closed_by_escape_and_keeps_keys_to_itself(
    node: RunningBroker, chromium: Chromium
) -> None:
    append(node, "quiet", {"value": 1})
    with console(chromium, node.url, "#/topics/quiet") as page:
        click(page, "Produce…")
        page.until("document.activeElement.name === 'key'")
        page.press("g", "t", "2")
        assert page.run("location.hash") == "#/topics/quiet"
        page.press("Escape")
        page.until("!document.querySelector('#form').open")
        assert page.run("location.hash") == "#/topics/quiet"
