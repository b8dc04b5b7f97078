"""Hooks of mkdocs: navigation from docs/index.md, and repository files that pages link to."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
LINK = re.compile(r"\]\(([^)#\s]+)")
FOLDER = "repository"
"""Folder of the site for files that are stored outside docs/."""


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Take the navigation from the table of docs/index.md: bold rows are sections."""
    nav: list[Any] = [{"Home": "index.md"}]
    pages = nav
    for line in (DOCS / "index.md").read_text().splitlines():
        if section := re.match(r"\| \*\*(.+?)\*\* \|", line):
            pages = []
            nav.append({section[1].capitalize(): pages})
        elif page := re.match(r"\| \[(.+?)\]\((.+?)\) \|", line):
            pages.append({page[1][0].upper() + page[1][1:]: page[2]})
    config.nav = nav
    return config


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the files outside docs/ that pages link to."""
    for page in sorted(DOCS.rglob("*.md")):
        for target in LINK.findall(page.read_text()):
            if (path := _outside(page, target)) is not None:
                uri = f"{FOLDER}/{path.relative_to(ROOT).as_posix()}"
                if files.get_file_from_path(uri) is None:
                    files.append(File.generated(config, uri, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, *, page: Page, **_: Any) -> str:
    """Point links to files outside docs/ at their copies in the site."""
    source = DOCS / page.file.src_uri

    def rewrite(match: re.Match[str]) -> str:
        path = _outside(source, match[1])
        if path is None:
            return match[0]
        uri = f"{FOLDER}/{path.relative_to(ROOT).as_posix()}"
        return f"]({os.path.relpath(uri, Path(page.file.src_uri).parent)}"

    return LINK.sub(rewrite, markdown)


def _outside(page: Path, target: str) -> Path | None:
    """Return the file that a link of `page` leads to, if it exists outside docs/."""
    if "://" in target:
        return None
    path = (page.parent / target).resolve()
    is_outside = path.is_file() and path.is_relative_to(ROOT) and not path.is_relative_to(DOCS)
    return path if is_outside else None
