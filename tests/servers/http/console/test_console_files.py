"""The files of the console: complete, safe, and only from the node."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html.parser import HTMLParser

import pytest

from millstream.config.schema import ConsoleAccess, HttpConfig
from millstream.errors import InvalidConfig
from millstream.servers.http.console.console_files import FIRST, POLICY, read_console
from millstream.servers.http.routing.browser_safety import HEADERS
from millstream.testing.broker import RunningBroker, running_broker
from tests.servers.http.calls import Answer, ask

FILES = sorted(read_console())
PATHS = ["/", *(f"/console/{name}" for name in FILES)]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    with running_broker(tmp_path_factory.mktemp("data")) as running:
        yield running


def get(node: RunningBroker, path: str, **headers: str) -> Answer:
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return ask(node.url, "GET", path, headers=names)


def test_the_console_is_at_the_root(node: RunningBroker) -> None:
    answer = get(node, "/")
    assert answer.status == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert answer.body == read_console()[FIRST].content


@pytest.mark.parametrize(
    ("ending", "kind"),
    [
        (".js", "text/javascript; charset=utf-8"),
        (".css", "text/css; charset=utf-8"),
        (".svg", "image/svg+xml"),
    ],
)
def test_its_files_say_what_they_are(node: RunningBroker, ending: str, kind: str) -> None:
    names = [name for name in FILES if name.endswith(ending)]
    assert names
    for name in names:
        answer = get(node, f"/console/{name}")
        assert (answer.status, answer.headers["content-type"]) == (200, kind)


@pytest.mark.parametrize("path", PATHS)
def test_a_browser_is_told_to_run_nothing_that_is_not_from_the_node(
    node: RunningBroker, path: str
) -> None:
    headers = get(node, path).headers
    assert headers["content-security-policy"] == POLICY
    others = {name.decode(): value.decode() for name, value in HEADERS}
    for name in ("x-content-type-options", "x-frame-options", "referrer-policy"):
        assert headers[name] == others[name]


def test_the_policy_lets_nothing_in() -> None:
    rules = dict(rule.split(" ", 1) for rule in POLICY.split("; "))
    assert rules == {
        "default-src": "'none'",
        "script-src": "'self'",
        "style-src": "'self'",
        "img-src": "'self' data:",
        "connect-src": "'self'",
        "font-src": "'none'",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
    }


def test_what_the_api_answers_keeps_its_own_policy(node: RunningBroker) -> None:
    for path in ("/v1/topics", "/openapi.json", "/nowhere"):
        policy = get(node, path).headers["content-security-policy"]
        assert policy == "default-src 'none'; frame-ancestors 'none'"


@pytest.mark.parametrize("path", PATHS)
def test_a_browser_that_has_a_file_is_told_that_it_is_the_same(
    node: RunningBroker, path: str
) -> None:
    first = get(node, path)
    assert first.headers["cache-control"] == "no-cache"
    tag = first.headers["etag"]
    for sent in (tag, f"W/{tag}", f'"other", {tag}', "*"):
        again = get(node, path, If_None_Match=sent)
        assert (again.status, again.body, again.headers["etag"]) == (304, b"", tag)
        assert again.headers["content-security-policy"] == POLICY
    changed = get(node, path, If_None_Match='"other"')
    assert (changed.status, changed.body) == (200, first.body)


def test_two_files_never_have_the_same_tag() -> None:
    tags = [one.etag for one in read_console().values()]
    assert len(set(tags)) == len(tags)


@pytest.mark.parametrize("path", ["/", "/console/main.js"])
def test_head_tells_of_a_file_without_sending_it(node: RunningBroker, path: str) -> None:
    answer = ask(node.url, "HEAD", path)
    assert (answer.status, answer.body) == (200, b"")
    assert int(answer.headers["content-length"]) == len(get(node, path).body)


@pytest.mark.parametrize(
    "path",
    [
        "/console/",
        "/console/nothing.js",
        "/console/views",
        "/console/../app.py",
        "/console/%2e%2e/app.py",
        "/console/..%2fapp.py",
        "/console//main.js",
        "/console/main.js/",
        "/index.html",
    ],
)
def test_what_is_no_file_of_it_is_not_found(node: RunningBroker, path: str) -> None:
    answer = get(node, path)
    assert (answer.status, answer.code) == (404, "not_found")


def test_nothing_can_be_changed(node: RunningBroker) -> None:
    for path in ("/", "/console/main.js"):
        answer = ask(node.url, "POST", path, b"x")
        assert answer.status == 405
        assert set(answer.headers["allow"].split(", ")) == {"GET", "HEAD"}


def test_pages_of_others_and_other_names_are_refused(node: RunningBroker) -> None:
    for path in ("/", "/console/main.js"):
        assert get(node, path, Origin="http://evil.example").status == 403
        frame = {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "navigate"}
        assert get(node, path, **frame, Sec_Fetch_Dest="iframe").status == 403
        assert get(node, path, Host="evil.example").status == 421
    assert get(node, "/", **frame, Sec_Fetch_Dest="document").status == 200  # A link.


def test_it_can_be_switched_off(tmp_path_factory: pytest.TempPathFactory) -> None:
    with running_broker(
        tmp_path_factory.mktemp("data"), http_server=HttpConfig(console=ConsoleAccess.OFF)
    ) as running:
        for path in ("/", "/console/main.js"):
            assert get(running, path).status == 404
        assert get(running, "/health/ready").status == 200


def test_the_access_is_off_read_or_write() -> None:
    with pytest.raises(InvalidConfig, match="console must be one of off, read, write, got 1"):
        HttpConfig(console=1)  # type: ignore[arg-type]


def test_it_is_not_among_what_programs_are_told_of(node: RunningBroker) -> None:
    paths = get(node, "/openapi.json").json["paths"]
    assert not [path for path in paths if path == "/" or path.startswith("/console")]


@pytest.mark.parametrize("name", FILES)
def test_no_file_names_anything_outside_the_node(name: str) -> None:
    text = read_console()[name].content.decode()
    found = re.findall(r"(?:https?:|wss?:)?//[\w.-]+\.[a-z]{2,}[^\s\"']*", _without_comments(text))
    assert [one for one in found if "www.w3.org" not in one] == []


def _without_comments(text: str) -> str:
    return re.sub(r"^\s*//.*$", "", text, flags=re.MULTILINE)


class _Inline(HTMLParser):
    """Collects everything that a policy without `unsafe-inline` would refuse."""

    def __init__(self) -> None:
        super().__init__()
        self.refused: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = {name for name, _ in attrs}
        self.refused += [f"{tag} {name}" for name in names if name.startswith("on")]
        self.refused += [f"{tag} style"] if "style" in names or tag == "style" else []
        self.refused += ["script"] if tag == "script" and "src" not in names else []


def test_the_page_has_no_script_and_no_style_in_it() -> None:
    found = _Inline()
    found.feed(read_console()[FIRST].content.decode())
    assert found.refused == []


@pytest.mark.parametrize("name", [name for name in FILES if name.endswith(".js")])
def test_no_script_can_turn_a_text_into_markup(name: str) -> None:
    text = read_console()[name].content.decode()
    ways = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function|srcdoc"
    ways += r"|createContextualFragment|DOMParser|setHTML"
    assert re.findall(ways, text) == []
