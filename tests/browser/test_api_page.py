"""`/docs` in a real browser: the document of this node, to be read, filtered and linked to."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from millstream.testing.broker import RunningBroker
from tests.browser.chromium import Chromium
from tests.browser.console import console
from tests.servers.http.calls import ask

PICTURES = Path("build/screenshots")


def test_every_operation_of_the_document_is_shown(node: RunningBroker, chromium: Chromium) -> None:
    document = json.loads(ask(node.url, "GET", "/openapi.json").body)
    count = sum(
        method in operations
        for operations in document["paths"].values()
        for method in ("get", "put", "post", "delete")
    )
    with console(chromium, node.url, "docs") as page:
        page.until(f"document.querySelectorAll('details').length === {count}")
        page.run("document.querySelector('#append_records summary').click()")
        page.until("document.querySelector('#append_records').open")
        page.until_shown("Parameters", "Body (application/json)", "Response 201", "Statuses")


def test_operations_are_filtered_and_linked_to(node: RunningBroker, chromium: Chromium) -> None:
    with console(chromium, node.url, "docs#append_records") as page:
        page.until("document.querySelector('#append_records')?.open === true")
        page.run("document.getElementById('filter').focus()")
        page.write("/claim")
        page.until(
            "[...document.querySelectorAll('details code')]"
            ".every(one => one.textContent.includes('/claim'))"
        )
        page.write("-nothing")
        page.until_shown('No operation has "/claim-nothing".')


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 400])
def test_the_page_fits_its_screen(
    node: RunningBroker, chromium: Chromium, width: int, scheme: str
) -> None:
    with console(chromium, node.url, "docs#append_records") as page:
        page.look(width=width, height=800, scheme=scheme, is_phone=width < 500)
        page.until("document.querySelector('#append_records')?.open === true")
        page.until("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
        page.screenshot(PICTURES / f"api-{width}-{scheme}.png")
