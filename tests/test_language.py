"""Texts for people use the usual words of this field."""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
WORDS = {
    r"doors?": "server, listener",
    r"doorway": "server",
    r"anew": "again",
    r"whoever": "the caller, the client",
    r"for ever": "forever",
    r"steady time": "retention clock",
    r"spare file": "ballast file",
    r"sift(s|ed|ing)?": "filter",
    r"be content": "succeed",
    r"(allowed|needed) is": "must be ..., got ...",
}
"""Patterns of words to avoid, and the words to use instead."""

ODD = re.compile(rf"\b({'|'.join(WORDS)})\b", re.IGNORECASE)
CODE = re.compile(r"`[^`]+`")
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("changes/*.md")])
FOLDERS = ("src", "tools", "tests", "benchmarks", "examples")
MODULES = sorted(
    path
    for folder in FOLDERS
    for path in ROOT.glob(f"{folder}/**/*.py")
    if path != Path(__file__) and "node_modules" not in path.parts
)


def texts_of(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the lines of a page, or of the comments and strings of a module."""
    if path.suffix == ".md":
        yield from enumerate(path.read_text().splitlines(), start=1)
        return
    for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline):
        if token.type in (tokenize.COMMENT, tokenize.STRING):
            yield from enumerate(token.string.splitlines(), start=token.start[0])


@pytest.mark.parametrize("path", PAGES + MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_words_are_those_of_the_field(path: Path) -> None:
    if not ODD.search(path.read_text()):
        return  # Most files have none: they need not be split into tokens.
    # Names in backquotes are code: a release note has to name what was renamed.
    lines = [(number, line, CODE.sub("", line)) for number, line in texts_of(path)]
    odd = [f"line {number}: {line.strip()}" for number, line, text in lines if ODD.search(text)]
    assert not odd, "\n".join(["see WORDS for other words:", *odd])
