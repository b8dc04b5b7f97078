"""Usability of the console: keyboard, color schemes, phone screens, and hidden pages."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from msgspec import msgpack

from millstream.config.schema import ConsoleAccess, HttpConfig
from millstream.testing.broker import RunningBroker, running_broker
from tests.browser.chromium import Chromium
from tests.browser.console import (
    AVRO,
    SCREENSHOTS,
    append,
    avro,
    bury,
    claim,
    commit,
    console,
    consumer,
    go,
    packed,
    put,
    texts,
    typing,
    writing,
)

LONG = (
    "clicks.sessionised.by-country.and-device.hourly-aggregates-with-a-name-that-is-rather-long.v12"
)

NAMES = [
    *("audit", "billing.invoices", "catalog", "clicks", LONG, "fraud.scores", "inventory"),
    *("payments.card.captures", "search.queries", "shipments.eu-central", "users.changes"),
]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    """A node whose console may write, so that its buttons have to fit too."""
    config = HttpConfig(console=ConsoleAccess.WRITE)
    with running_broker(tmp_path_factory.mktemp("node"), http_server=config) as running:
        yield running


@pytest.fixture(scope="module")
def stocked(node: RunningBroker) -> Iterator[RunningBroker]:
    """A node with data for every view."""
    for at, name in enumerate(NAMES):
        append(node, name, *({"value": {"n": n, "at": at}} for n in range(10 * at + 1)))
    configs = {"segment.bytes": "16384", "retention.ms": "604800000"}
    put(node, "/v1/topics/orders", {"partitions": 4, "configs": configs})
    states = ("created", "paid", "packed", "shipped")
    for n in range(60):
        value = {
            "order": 1_000_000 + n,
            "state": states[n % 4],
            "customer": {"id": n * 37, "country": "DE"},
            "lines": [{"sku": "A-100", "quantity": 2, "price": 19.9}],
            "note": "x" * 900,
        }
        append(node, "orders", {"key": f"customer-{n * 37}", "value": value, "partition": n % 4})
    put(node, "/v1/queues/mail", {"lease_ms": 3_600_000})
    append(node, "mail", *({"key": f"k{n}", "value": {"to": f"p{n}@x"}} for n in range(40)))
    claim(node, "mail", "mailer-7f9c", 6)
    bury(node, "reports", 7)
    put(node, "/v1/topics/sensors", {"schema": {"format": "avro", "schema": AVRO}})
    append(node, "sensors", *({"value": packed(avro(n))} for n in range(5)))
    put(node, "/v1/topics/telemetry", {"schema": {"format": "msgpack"}})
    values = ({"host": f"h{n}", "load": n / 8} for n in range(5))
    append(node, "telemetry", *({"value": packed(msgpack.encode(one))} for one in values))
    rates = {"producer_byte_rate": 1_048_576, "request_percentage": 50}
    put(node, "/v1/quotas", {"client_id": "etl", "rates": rates})
    put(node, "/v1/quotas", {"user": {"default": True}, "rates": {"consumer_byte_rate": 1e9}})
    with consumer(node, "billing", "orders", client="billing-worker-1") as joined:
        for partition in range(4):
            commit(joined, "orders", partition, 15 - 5 * partition)
        with consumer(node, "a-group-whose-name-does-not-fit-on-any-phone.v2", "orders"):
            yield node


SHOWN = {
    "topics": ("#/topics", "document.querySelectorAll('tbody tr').length > 10"),
    "topic": ("#/topics/orders", "document.querySelectorAll('tbody tr').length === 4"),
    "segments": ("#/topics/orders/segments", "document.querySelectorAll('.segment').length > 4"),
    "configs": ("#/topics/orders/configs", "document.querySelectorAll('tbody tr').length > 20"),
    "readers": ("#/topics/orders/readers", "document.querySelectorAll('tbody tr').length > 2"),
    "search": (
        "#/topics/orders/search?field=state&value=shipped",
        "document.querySelectorAll('tr.record').length === 15",
    ),
    "search-start": ("#/topics/orders/search", "document.querySelector('.search-form')"),
    "avro": (
        "#/topics/sensors/tail",
        "document.querySelectorAll('tr.record').length === 5 &&"
        " (document.querySelector('.detail-row')"
        " || !document.querySelectorAll('tr.record')[2].click())",
    ),
    "msgpack": ("#/topics/telemetry/tail", "document.querySelectorAll('tr.record').length === 5"),
    "topic-tail": ("#/topics/orders/tail", "document.querySelectorAll('tr.record').length === 60"),
    "tail": (
        "#/tail?topic=orders&topic=clicks",
        "document.querySelectorAll('tr.record').length > 60",
    ),
    "tail-filter": (
        "#/tail?topic=orders&q=shipped",
        "document.querySelectorAll('tr.record').length === 15 &&"
        " (document.querySelector('.detail-row')"
        " || !document.querySelectorAll('tr.record')[12].click())",
    ),
    "tail-choice": ("#/tail", "document.querySelectorAll('.choices li').length > 5"),
    "groups": ("#/groups", "document.querySelectorAll('tbody tr').length === 2"),
    "group": ("#/groups/billing", "document.querySelectorAll('tbody tr').length === 5"),
    "queues": ("#/queues", "document.querySelectorAll('tbody tr').length === 2"),
    "dead-letters": (
        "#/queues/reports?state=dead",
        "document.querySelectorAll('tr.record').length === 7 &&"
        " (document.querySelector('.detail-row')"
        " || !document.querySelectorAll('tr.record')[2].click())",
    ),
    "clients": ("#/clients", "document.querySelectorAll('tbody tr').length > 3"),
    "queue": ("#/queues/mail?state=leased", "document.querySelectorAll('tr.record').length === 6"),
    "pipelines": ("#/pipelines", "document.body.innerText.includes('No pipelines yet')"),
    "health": ("#/health", "document.querySelectorAll('.card').length > 4"),
    "cluster": ("#/cluster", "document.querySelectorAll('tbody tr').length > 5"),
    "missing": ("#/topics/nothing", "document.body.innerText.includes('Not found')"),
    "overview": ("#/overview", "document.querySelectorAll('tbody a').length > 6"),
}

LOOKS = {
    "light": {"scheme": "light"},
    "dark": {"scheme": "dark"},
    "laptop": {"width": 1280, "height": 800},
    "laptop-dark": {"width": 1280, "height": 800, "scheme": "dark"},
    "phone": {"width": 360, "height": 740, "is_phone": True},
    "phone-400": {"width": 400, "height": 800, "is_phone": True},
    "phone-400-dark": {"width": 400, "height": 800, "is_phone": True, "scheme": "dark"},
}

CUT = """[...document.querySelectorAll('.tabs, .chart-legend, .figure dt')]
    .filter(one => one.scrollHeight > one.clientHeight
        || (one.matches(':not(.tabs)') && one.scrollWidth > one.clientWidth))
    .map(one => one.className + ': ' + one.textContent)"""
"""Rows that do not fit: part of them is cut off, or they have a scroll bar of their own."""


def test_every_view_fits_every_screen(stocked: RunningBroker, chromium: Chromium) -> None:
    """Writes a screenshot of each view to `build/screenshots`."""
    wide, cut = {}, {}
    with writing(stocked, "clicks"), console(chromium, stocked.url) as page:
        for name, (view, is_there) in SHOWN.items():
            go(page, view)
            page.until(f"location.hash === '{view}' && ({is_there})")
            for look, how in LOOKS.items():
                page.look(**how)
                page.run("new Promise(done => requestAnimationFrame(() => setTimeout(done)))")
                page.screenshot(SCREENSHOTS / f"{name}-{look}.png")
                wide[name, look] = page.run("document.documentElement.scrollWidth - innerWidth")
                cut[name, look] = page.run(CUT)
            page.look()
    assert {place: by for place, by in wide.items() if by > 0} == {}
    assert {place: found for place, found in cut.items() if found} == {}


@pytest.mark.parametrize("look", ["laptop", "phone-400"])
@pytest.mark.parametrize("name", ["queues", "groups", "pipelines", "missing"])
def test_a_view_that_fits_has_no_scroll_bar(
    stocked: RunningBroker, chromium: Chromium, name: str, look: str
) -> None:
    view, is_there = SHOWN[name]
    with console(chromium, stocked.url, view) as page:
        page.look(**LOOKS[look])
        page.until(is_there)
        content = "document.querySelector('.view').getBoundingClientRect().bottom"
        assert page.run(f"{content} < innerHeight - 60")
        assert page.run("document.documentElement.scrollHeight") == LOOKS[look]["height"]


def test_legends_fit_with_the_longest_figures(stocked: RunningBroker, chromium: Chromium) -> None:
    with console(chromium, stocked.url) as page:
        page.until("document.querySelectorAll('.chart-legend').length === 8")
        page.run(
            "document.querySelectorAll('.chart-value').forEach(one =>"
            " { one.textContent = '1,023 KiB/s'; one.className = 'chart-value' })"
        )
        for look in ("laptop", "phone-400"):
            page.look(**LOOKS[look])
            assert page.run(CUT) == []


def test_values_of_jobs_are_on_the_screen_of_a_phone(
    stocked: RunningBroker, chromium: Chromium
) -> None:
    with console(chromium, stocked.url, "#/queues/mail") as page:
        page.look(**LOOKS["phone-400"])
        page.until("document.querySelectorAll('tr.record').length > 10")
        outside = (
            "[...document.querySelectorAll('tr.record .value')].filter(one => {"
            " const box = one.getBoundingClientRect();"
            " return box.width < 40 || box.left < 0 || box.right > innerWidth; }).length"
        )
        assert page.run(outside) == 0


def test_everything_can_be_reached_by_keys(stocked: RunningBroker, chromium: Chromium) -> None:
    with console(chromium, stocked.url) as page:
        page.until("document.querySelectorAll('tbody a').length > 6")
        page.press("?")
        page.until("document.getElementById('help').open")
        page.press("Escape")
        page.until("!document.getElementById('help').open")
        letters = {
            "t": "topics",
            "l": "tail",
            "g": "groups",
            "q": "queues",
            "p": "pipelines",
            "c": "clients",
        }
        letters |= {"h": "health", "n": "cluster", "o": "overview"}
        for letter, view in letters.items():
            page.press("g", letter)
            page.until(f"location.hash === '#/{view}'")
            page.until(
                "document.activeElement.tagName === 'H1' &&"
                f" document.querySelector('#nav [aria-current]').dataset.view === '{view}'"
            )
        page.press("2")
        page.until("document.querySelectorAll('tbody tr').length > 10")
        with typing(page):
            page.write("o")  # A letter in a field is a letter.
            page.write("rders")
            page.until("document.querySelectorAll('tbody tr').length === 1")
            page.press("ArrowDown")
            page.until("document.activeElement.textContent === 'orders'")
            page.press("Enter")
            page.until("location.hash === '#/topics/orders'")
        page.until("document.querySelectorAll('tbody tr').length === 4")
        page.press("j", "j", "k", "ArrowDown")
        assert page.run("document.activeElement.cells[0].textContent") == "1"
        page.press("Escape")
        page.until("location.hash === '#/topics'")


def test_focus_is_seen_and_the_navigation_can_be_skipped(
    stocked: RunningBroker, chromium: Chromium
) -> None:
    with console(chromium, stocked.url) as page:
        page.press("Tab")
        page.until("document.activeElement.className === 'skip'")
        assert page.run("document.activeElement.getBoundingClientRect().top") >= 0
        page.press("Enter")
        page.until("document.activeElement.id === 'main'")
        assert page.run("location.hash") == "#/overview"
        page.until("document.querySelector('.chart-frame')")
        page.press("Tab", "Tab")
        style = "getComputedStyle(document.activeElement)"
        assert page.run(f"{style}.outlineStyle") == "solid"
        assert page.run(f"{style}.outlineWidth") == "2px"


def test_every_table_is_one_and_has_a_name(stocked: RunningBroker, chromium: Chromium) -> None:
    with console(chromium, stocked.url) as page:
        for view, is_there in SHOWN.values():
            go(page, view)
            page.until(f"location.hash === '{view}' && ({is_there})")
            nameless = (
                "[...document.querySelectorAll('table')].filter(one => !one.ariaLabel"
                " || !one.querySelector('thead th[scope=col]')).length"
            )
            assert page.run(nameless) == 0
            mute = (
                "[...document.querySelectorAll('button, input, select, a')].filter(one =>"
                " !(one.textContent.trim() || one.ariaLabel || one.title"
                " || one.labels?.length)).length"
            )
            assert page.run(mute) == 0


def background(scheme: str) -> str:
    return {"light": "rgb(246, 247, 249)", "dark": "rgb(14, 17, 20)"}[scheme]


def test_colors_are_those_of_the_system_until_somebody_chooses(
    stocked: RunningBroker, chromium: Chromium
) -> None:
    now = "getComputedStyle(document.body).backgroundColor"
    with console(chromium, stocked.url) as page:
        for scheme in ("dark", "light"):
            page.look(scheme=scheme)
            assert page.run(now) == background(scheme)
        page.press("d", "d")  # Light, then dark, whatever the system says.
        assert page.run(now) == background("dark")
        go(page, "#/topics")
        page.reload()
        page.until("document.querySelectorAll('tbody tr').length > 10")
        assert page.run(now) == background("dark")
        page.run("document.getElementById('theme').click()")
        assert page.run(now) == background("light")
        assert texts(page, "#theme") == ["Auto"]


COUNTING = """{
    window.timers = new Set();
    window.flights = 0;
    const { setTimeout, clearTimeout, fetch } = window;
    window.setTimeout = (work, ...rest) => {
        const timer = setTimeout(() => { timers.delete(timer); work(); }, ...rest);
        timers.add(timer);
        return timer;
    };
    window.clearTimeout = timer => { timers.delete(timer); clearTimeout(timer); };
    window.fetch = async (...rest) => {
        flights += 1;
        try {
            const answer = await fetch(...rest);
            const text = await answer.text();
            answer.text = async () => text;
            return answer;
        } finally { setTimeout(() => { flights -= 1; }); }
    };
    window.isAway = false;
    Object.defineProperty(document, "hidden", { get: () => isAway });
    window.leave = isNow => {
        isAway = isNow;
        document.dispatchEvent(new Event("visibilitychange"));
    };
    window.isQuiet = () => timers.size === 0 && flights === 0;
}"""


def test_nothing_is_asked_while_nobody_looks(stocked: RunningBroker, chromium: Chromium) -> None:
    with console(chromium, stocked.url) as page:
        page.before_scripts(COUNTING)
        page.reload()
        page.until("window.isQuiet && document.querySelectorAll('tbody a').length > 6")
        assert page.run("isQuiet()") is False
        page.run("leave(true)")
        quiet = """new Promise(done => {
            const look = () => isQuiet() ? done(true) : requestAnimationFrame(look);
            look();
        })"""
        assert page.run(quiet) is True
        asked = len(page.requests)
        page.run("leave(false)")
        page.until("!isQuiet()")
        assert len(page.requests) > asked
