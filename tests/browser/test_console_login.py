"""The login of the console: a token of this tab, sent in headers, never in an address."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from millstream.broker.access.acls import Acl, Permission, ResourcePattern
from millstream.broker.access.caller import Caller
from millstream.broker.access.principal import user
from millstream.broker.access.resources import CLUSTER, Operation, ResourceType
from millstream.broker.access.tokens import Token
from millstream.config.schema import AccessConfig, ConsoleAccess, HttpConfig, ReadAccess
from millstream.testing.broker import RunningBroker, running_broker
from tests.browser.chromium import Chromium
from tests.browser.console import SCREENSHOTS, console, go, texts, typing
from tests.browser.page import Page
from tests.browser.test_console_acting import click, until_done
from tests.servers.http.calls import ask

ROOT = Caller(user("root"), "127.0.0.1")
LOGIN = "document.querySelector('form.login')"
FIELD = "document.querySelector('form.login [name=token]')"
STORED = "[sessionStorage, localStorage].map(one => JSON.stringify({...one})).join()"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    access = AccessConfig(enabled=True, super_users=("root",))
    http = HttpConfig(console=ConsoleAccess.WRITE, access_log=True)
    data = tmp_path_factory.mktemp("node")
    with running_broker(data, access=access, http_server=http) as running:
        for name in ("orders", "payroll"):
            running.run(running.server.broker.topics.create(name, partitions=1))
        allow(running, "alice", Operation.READ, ResourceType.TOPIC, "orders")
        allow(running, "auditor", Operation.DESCRIBE, CLUSTER.kind, CLUSTER.name)
        deny = Acl(
            ResourcePattern(ResourceType.TOPIC, "payroll"),
            user("alice"),
            "*",
            Operation.ALL,
            Permission.DENY,
        )
        running.run(running.server.broker.access.create_acl(deny, by=ROOT))
        yield running


def allow(
    node: RunningBroker, name: str, operation: Operation, kind: ResourceType, resource: str
) -> None:
    acl = Acl(ResourcePattern(kind, resource), user(name), "*", operation, Permission.ALLOW)
    node.run(node.server.broker.access.create_acl(acl, by=ROOT))


def token_of(node: RunningBroker, name: str, note: str = "") -> tuple[Token, str]:
    access = node.server.broker.access
    return node.run(access.create_token(user(name), by=ROOT, note=note))


def append(node: RunningBroker, token: str, value: object) -> None:
    body = json.dumps({"records": [{"value": value}]}).encode()
    headers = {"Authorization": f"Bearer {token}"}
    answer = ask(node.url, "POST", "/v1/topics/orders/records", body, headers)
    assert answer.status == 201, answer.body


def log_in(page: Page, token: str) -> None:
    """Type a token, by keys."""
    page.until(f"document.activeElement === {FIELD}")
    page.run(f"void {FIELD}.select()")
    page.write(token)
    page.press("Enter")


def until_logged_in(page: Page, name: str) -> None:
    page.until(
        f"!{LOGIN} && document.querySelector('#identity span')?.textContent === {json.dumps(name)}"
    )


def until_refused(page: Page, words: str) -> None:
    shown = f"{LOGIN}?.querySelector('.form-error:not([hidden])')?.textContent"
    page.until(f"{shown}?.includes({json.dumps(words)})")
    page.until(f"document.activeElement === {FIELD}")


@contextmanager
def logged_in(
    node: RunningBroker, chromium: Chromium, token: str, name: str, view: str
) -> Iterator[Page]:
    with console(chromium, node.url, view) as page:
        log_in(page, token)
        until_logged_in(page, name)
        yield page


def test_nothing_is_shown_or_asked_for_before_the_login(
    node: RunningBroker, chromium: Chromium
) -> None:
    with console(chromium, node.url, "#/topics") as page:
        page.until(LOGIN)
        page.screenshot(SCREENSHOTS / "login.png")
        assert "orders" not in page.run("document.body.innerText")
        assert page.run("getComputedStyle(document.getElementById('nav')).visibility") == "hidden"
        paths = {url.removeprefix(node.url) for url in page.requests if "/v1/" in url}
        assert paths == {"/v1/access/whoami"}
        go(page, "#/overview")
        page.until(f"document.activeElement === {FIELD}")


def test_a_login_shows_the_view_that_was_asked_for(node: RunningBroker, chromium: Chromium) -> None:
    _, text = token_of(node, "root")
    with logged_in(node, chromium, text, "root", "#/topics") as page:
        page.until("document.querySelectorAll('tbody tr').length === 2")
        assert texts(page, "tbody th") == ["orders", "payroll"]
        page.until("document.getElementById('node-text').textContent.endsWith('ready')")
        # It stays logged in when the page is loaded again, in this tab.
        page.reload()
        until_logged_in(page, "root")
        page.until("document.querySelectorAll('tbody tr').length === 2")
    with console(chromium, node.url, "#/topics") as another_tab:
        another_tab.until(LOGIN)


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ("", "Enter a token"),
        ("ms_4f1d0c9a2b7e_nothing", "unknown, revoked or expired"),
        ("two words", "has no spaces"),
    ],
)
def test_a_wrong_token_is_asked_for_again(
    node: RunningBroker, chromium: Chromium, typed: str, words: str
) -> None:
    with console(chromium, node.url) as page:
        log_in(page, typed)
        until_refused(page, words)
        assert page.run(STORED).find("token") < 0
        _, text = token_of(node, "root")
        log_in(page, text)
        until_logged_in(page, "root")


def test_a_revoked_token_logs_out_with_the_reason_and_ends_the_tail(
    node: RunningBroker, chromium: Chromium
) -> None:
    token, text = token_of(node, "alice")
    _, root = token_of(node, "root")
    with logged_in(node, chromium, text, "alice", "#/tail?topic=orders") as page:
        page.until("document.querySelector('.tail-state').textContent.includes('live')")
        append(node, root, "the first")
        page.until_shown("the first")
        node.run(node.server.broker.access.revoke_token(token.id, by=ROOT))
        until_refused(page, "You were logged out")
        assert "the first" not in page.run("document.body.innerText")
        assert page.run(STORED).find("ms_") < 0
        _, again = token_of(node, "alice")
        log_in(page, again)
        page.until_shown("the first")


def test_logging_out_forgets_the_token(node: RunningBroker, chromium: Chromium) -> None:
    _, text = token_of(node, "root")
    with logged_in(node, chromium, text, "root", "#/topics") as page:
        assert text in page.run("JSON.stringify({...sessionStorage})")
        assert text not in page.run("JSON.stringify({...localStorage}) + document.cookie")
        page.run("document.querySelector('#identity button').focus()")
        page.press("Enter")
        page.until(LOGIN)
        assert text not in page.run(STORED)
        page.reload()
        page.until(LOGIN)


def test_a_token_is_in_no_address_and_in_no_log(
    node: RunningBroker, chromium: Chromium, caplog: pytest.LogCaptureFixture
) -> None:
    _, text = token_of(node, "root")
    secret = text.rpartition("_")[2]
    with caplog.at_level(logging.DEBUG, logger="millstream"):
        with logged_in(node, chromium, text, "root", "#/tail?topic=orders") as page:
            page.until("document.querySelector('.tail-state').textContent.includes('live')")
            assert any("/v1/events" in url for url in page.requests)
            assert not any(secret in url for url in page.requests)
            assert secret not in page.run("location.href + document.documentElement.outerHTML")
        logged = "".join(
            f"{one.getMessage()} {one.__dict__}"
            for one in caplog.records
            if one.name.startswith("millstream")
        )
    assert "/v1/events" in logged
    assert secret not in logged


def test_a_user_sees_what_it_may_and_is_told_what_not(
    node: RunningBroker, chromium: Chromium
) -> None:
    _, text = token_of(node, "alice")
    with logged_in(node, chromium, text, "alice", "#/topics") as page:
        page.until("document.querySelectorAll('tbody tr').length === 1")
        assert texts(page, "tbody th") == ["orders"]
        page.until("document.getElementById('node-text').textContent === 'Node ready'")
        assert page.run("document.querySelector('#nav [data-view=access]').checkVisibility()") is (
            False
        )
        go(page, "#/health")
        page.until_shown("You may not see this", "User:alice may not describe the cluster")
        go(page, "#/access")
        page.until_shown("You may not see this")


def test_who_may_do_what_is_shown_to_those_who_may_describe_the_cluster(
    node: RunningBroker, chromium: Chromium
) -> None:
    token, text = token_of(node, "auditor", note="the auditor's own")
    secret = text.rpartition("_")[2]
    with logged_in(node, chromium, text, "auditor", "#/overview") as page:
        page.press("g", "a")
        page.until("location.hash === '#/access'")
        page.until_shown("User:auditor", token.id, "the auditor's own")
        rows = page.run(
            "[...document.querySelectorAll('[aria-label=Rules] tbody tr')].map(row =>"
            " [...row.cells].map(cell => cell.textContent).join(' '))"
        )
        assert "alice deny all topic payroll everywhere" in rows
        assert "alice allow read topic orders everywhere" in rows
        assert "Revoke" not in texts(page, "button"), "it may not alter the cluster"
        assert secret not in page.run("document.documentElement.outerHTML")
        with typing(page):
            page.write("payroll")
            page.until("document.querySelectorAll('[aria-label=Rules] tbody tr').length === 1")
        for name, look in (
            ("access", {}),
            ("access-dark", {"scheme": "dark"}),
            ("access-phone", {"width": 400, "height": 800, "is_phone": True}),
        ):
            page.run(
                "{ const field = document.querySelector('[data-search]'); field.value = '';"
                " field.dispatchEvent(new Event('input')); }"
            )
            page.look(**look)  # type: ignore[arg-type]
            overlap = (
                "document.querySelector('.brand').getBoundingClientRect().right >"
                " document.querySelector('.side-foot').getBoundingClientRect().left"
            )
            assert "phone" not in name or not page.run(overlap)
            page.screenshot(SCREENSHOTS / f"{name}.png")


def test_an_administrator_revokes_a_token(node: RunningBroker, chromium: Chromium) -> None:
    lost, text = token_of(node, "carol", note="lost laptop")
    _, root = token_of(node, "root")
    with logged_in(node, chromium, root, "root", "#/access?q=carol") as page:
        page.until_shown(lost.id, "lost laptop")
        click(page, "Revoke")
        page.until("document.querySelector('#form[open]')")
        page.run("document.querySelector('#form [type=submit]').click()")
        until_done(page, f"Revoked token {lost.id} of carol.")
        page.until(f"!document.querySelector('main').innerText.includes('{lost.id}')")
    answer = ask(node.url, "GET", "/v1/access/whoami", None, {"Authorization": f"Bearer {text}"})
    assert answer.status == 401


def test_where_reads_are_open_a_login_is_offered_and_not_demanded(
    chromium: Chromium, tmp_path_factory: pytest.TempPathFactory
) -> None:
    access = AccessConfig(enabled=True, super_users=("root",), reads=ReadAccess.OPEN)
    with running_broker(tmp_path_factory.mktemp("open"), access=access) as node:
        node.run(node.server.broker.topics.create("news", partitions=1))
        _, text = token_of(node, "root")
        with console(chromium, node.url, "#/topics") as page:
            page.until_shown("news", "not logged in")
            click(page, "Log in")
            page.until(LOGIN)
            click(page, "Continue without")
            page.until_shown("news", "not logged in")
            click(page, "Log in")
            log_in(page, text)
            until_logged_in(page, "root")
            click(page, "Log out")
            page.until_shown("news", "not logged in")


def test_a_node_without_logins_asks_nobody(
    chromium: Chromium, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with (
        running_broker(tmp_path_factory.mktemp("plain")) as plain,
        console(chromium, plain.url, "#/topics") as page,
    ):
        page.until_shown("No topics yet")
        assert page.run("document.getElementById('identity').hidden")
        assert page.run("document.querySelector('#nav [data-view=access]').hidden")


def test_a_page_opens_a_websocket_with_its_token(node: RunningBroker, chromium: Chromium) -> None:
    _, text = token_of(node, "alice")
    talk = """
        new Promise(done => {
            const socket = new WebSocket("/v1/ws", OFFERS);
            socket.onopen = () =>
                socket.send(JSON.stringify({op: "subscribe", id: 1, topics: ["orders"]}));
            socket.onmessage = ({data}) => {
                if (JSON.parse(data).type === "heartbeat") return;
                done([JSON.parse(data).type, socket.protocol]);
                socket.close();
            };
            socket.onclose = event => done(event.code);
        })
    """
    with chromium.page(f"{node.url}/docs") as page:
        offers = json.dumps(["millstream", f"millstream.token.{text}"])
        assert page.run(talk.replace("OFFERS", offers)) == ["answer", "millstream"]
        wrong = json.dumps(["millstream", "millstream.token.ms_4f1d0c9a2b7e_x"])
        assert page.run(talk.replace("OFFERS", wrong)) == 1006
        assert page.run(talk.replace("OFFERS", '["millstream"]')) == ["error", "millstream"]
        assert not any(text in url for url in page.requests)
