"""The documentation is true: its code runs, its links lead somewhere, its derived pages are new."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

import millstream

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
SNIPPETS = [
    pytest.param(match[1], id=f"{page.relative_to(ROOT)}:{number}")
    for page in PAGES
    for number, match in enumerate(
        re.finditer(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL), start=1
    )
]


@pytest.mark.parametrize("code", SNIPPETS)
def test_the_code_in_the_documentation_runs(code: str, tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 0, result.stderr


def test_there_is_code_to_run() -> None:
    assert len(SNIPPETS) >= 8


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


GENERATED = runpy.run_path(str(ROOT / "tools/generate_docs.py"))["pages"]()


@pytest.mark.parametrize("name", GENERATED)
def test_the_derived_pages_are_what_make_docs_would_write(name: str) -> None:
    assert (ROOT / "docs/reference" / name).read_text() == GENERATED[name], "run `make docs`"


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
