"""The format of a planted bug, and the search for the place where it belongs.

A bug is a text file `NAME.bug`: two header lines, then one or more edits.

    Promise: what is broken
    Caught by: tests/storage/test_append.py tests/crash/test_power_cut.py::test_name

    <<<< src/millstream/storage/writer.py
            self.sync()
            self.acknowledge()
    ====
            self.acknowledge()
    >>>>

The lines between `<<<<` and `====` are replaced by the lines between `====` and `>>>>`. Both blocks
are whole lines and are taken literally; nothing is escaped. The replacement may be empty.

The text to find must occur exactly once in the named file. If the file does not exist or does not
contain the text, all files of the tree are searched, and the text must occur in exactly one of
them. The edits of a bug are located in the unchanged files, so their order does not matter. They
must not overlap.

The named tests must exist. If they do not, they are only looked for in order to update a bug file:
names of tests are no proof that the right one was found.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

OPEN = "<<<< "
MIDDLE = "===="
CLOSE = ">>>>"
PROMISE = "Promise"
CAUGHT_BY = "Caught by"
SKIPPED = {"__pycache__", "node_modules"}
BUGS = "tests/planted"
"""Not searched: a bug contains the text that it looks for."""


class BadFormat(Exception):
    """A bug file cannot be parsed."""


class LostPlace(Exception):
    """The text that a bug replaces is missing or ambiguous."""


@dataclass(frozen=True)
class Edit:
    """Lines to find in a file, and the lines that replace them."""

    path: str
    find: str
    replace: str
    line: int
    """Index of the `<<<<` line in the bug file."""


@dataclass(frozen=True)
class Bug:
    """One planted bug."""

    name: str
    promise: str
    tests: tuple[str, ...]
    tests_line: int
    edits: tuple[Edit, ...]


class Tree:
    """The files that bugs are planted in and tests are taken from."""

    def __init__(self, root: Path, parts: Sequence[str]) -> None:
        self.root = root
        self._parts = parts
        self._texts: dict[str, str | None] = {}
        self._paths: list[str] | None = None

    def text(self, path: str) -> str | None:
        """Return the contents of a file, or None if it does not exist or is not UTF-8."""
        if path not in self._texts:
            try:
                self._texts[path] = (self.root / path).read_bytes().decode()
            except (OSError, UnicodeDecodeError):
                self._texts[path] = None
        return self._texts[path]

    def paths(self) -> list[str]:
        """Return the paths of all files, relative to the root."""
        if self._paths is None:
            self._paths = sorted(self._walk())
        return self._paths

    def containing(self, find: str) -> list[str]:
        """Return the paths of all files that contain these whole lines."""
        return [
            path
            for path in self.paths()
            if find in (text := self.text(path) or "") and positions(text, find)
        ]

    def _walk(self) -> Iterator[str]:
        for part in self._parts:
            start = self.root / part
            for file in [start] if start.is_file() else start.rglob("*"):
                path = file.relative_to(self.root)
                is_skipped = not SKIPPED.isdisjoint(path.parts) or path.is_relative_to(BUGS)
                if not is_skipped and file.is_file():
                    yield path.as_posix()


def read_bug(source: Path) -> Bug:
    """Read a bug from its file."""
    return parse_bug(source.stem, source.read_bytes().decode())


def parse_bug(name: str, text: str) -> Bug:
    """Parse the text of a bug file."""
    headers: dict[str, tuple[str, int]] = {}
    edits: list[Edit] = []
    lines = enumerate(text.removesuffix("\n").split("\n"))
    for number, line in lines:
        if line.startswith(OPEN):
            find = _block(name, lines, number, MIDDLE)
            replace = _block(name, lines, number, CLOSE)
            if not find.strip():
                raise BadFormat(f"{name}, line {number + 1}: the text to find is empty")
            if find == replace:
                raise BadFormat(f"{name}, line {number + 1}: the edit changes nothing")
            edits.append(Edit(line.removeprefix(OPEN).strip(), find, replace, number))
        elif line.strip():
            key, _, value = line.partition(":")
            if edits or key not in {PROMISE, CAUGHT_BY} or key in headers or not value.strip():
                raise BadFormat(f"{name}, line {number + 1}: unexpected line: {line}")
            headers[key] = (value.strip(), number)
    for key in (PROMISE, CAUGHT_BY):
        if key not in headers:
            raise BadFormat(f"{name}: the header line '{key}: ' is missing")
    if not edits:
        raise BadFormat(f"{name}: there is no edit")
    tests, tests_line = headers[CAUGHT_BY]
    return Bug(name, headers[PROMISE][0], tuple(tests.split()), tests_line, tuple(edits))


def _block(name: str, lines: Iterator[tuple[int, str]], start: int, end: str) -> str:
    """Return the lines up to the delimiter `end`, each with its newline."""
    block: list[str] = []
    for number, line in lines:
        if line == end:
            return "".join(block)
        if line in {MIDDLE, CLOSE} or line.startswith(OPEN):
            raise BadFormat(f"{name}, line {number + 1}: expected {end}, got {line}")
        block.append(line + "\n")
    raise BadFormat(f"{name}, line {start + 1}: the edit has no line {end}")


def positions(text: str, find: str) -> list[int]:
    """Return where the whole lines `find` start in `text`."""
    if not text.endswith("\n"):
        text += "\n"
    found = []
    start = text.find(find)
    while start != -1:
        if start == 0 or text[start - 1] == "\n":
            found.append(start)
        start = text.find(find, start + 1)
    return found


def located_file(tree: Tree, edit: Edit) -> str:
    """Return the path of the file that contains the text of an edit exactly once."""
    path = edit.path
    if not positions(tree.text(path) or "", edit.find):
        paths = tree.containing(edit.find)
        if len(paths) != 1:
            named = "does not exist" if tree.text(path) is None else "does not contain the text"
            found = f"it is in {len(paths)} other files: {', '.join(paths)}"
            reason = found if paths else "no other file contains it"
            raise LostPlace(f"{path} {named}, and {reason}. The text is:\n{_quoted(edit.find)}")
        path = paths[0]
    count = len(positions(tree.text(path) or "", edit.find))
    if count != 1:
        raise LostPlace(f"{path} contains the text {count} times. It is:\n{_quoted(edit.find)}")
    return path


def _quoted(text: str) -> str:
    return "".join(f"    | {line}\n" for line in text.splitlines()).rstrip("\n")


def edited_files(tree: Tree, bug: Bug) -> dict[str, str]:
    """Return the new contents of each file that the bug changes."""
    spans: dict[str, list[tuple[int, int, str]]] = {}
    for edit in bug.edits:
        path = located_file(tree, edit)
        start = positions(tree.text(path) or "", edit.find)[0]
        spans.setdefault(path, []).append((start, start + len(edit.find), edit.replace))
    return {path: _spliced(path, tree.text(path) or "", spans[path]) for path in spans}


def _spliced(path: str, text: str, spans: list[tuple[int, int, str]]) -> str:
    pieces = []
    position = 0
    for start, end, replacement in sorted(spans):
        if start < position:
            raise LostPlace(f"two edits of {path} overlap")
        pieces += [text[position:start], replacement]
        position = end
    return "".join([*pieces, text[position:]])


def has_test(tree: Tree, test: str) -> bool:
    """Whether a test of `Caught by` exists: its file, and its function if one is named."""
    path, _, inner = test.partition("::")
    text = tree.text(path)
    function = inner.rpartition("::")[2].partition("[")[0]
    pattern = rf"^\s*(async )?def {re.escape(function)}\("
    return text is not None and (not function or bool(re.search(pattern, text, re.MULTILINE)))


def candidates(tree: Tree, test: str) -> list[str]:
    """Return the tests that a missing test may have become when files moved.

    A function is looked up by its name, a whole file by its file name. Of several, those are
    returned whose paths have the most trailing parts in common with the old path.
    """
    path, separator, inner = test.partition("::")
    found: dict[int, list[str]] = {}
    for other in tree.paths():
        common = _common_end(path, other)
        is_possible = other.startswith("tests/") and (inner or common)
        if is_possible and has_test(tree, f"{other}{separator}{inner}"):
            found.setdefault(common, []).append(f"{other}{separator}{inner}")
    return found[max(found)] if found else []


def _common_end(first: str, second: str) -> int:
    pairs = zip(reversed(first.split("/")), reversed(second.split("/")), strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def problems(tree: Tree, bug: Bug) -> list[str]:
    """Return what keeps the bug from being planted, one message for each problem."""
    messages = []
    for edit in bug.edits:
        try:
            located_file(tree, edit)
        except LostPlace as error:
            messages.append(f"{bug.name}: has lost its place: {error}")
    for test in bug.tests:
        if not has_test(tree, test):
            found = ", ".join(candidates(tree, test)) or "none"
            messages.append(f"{bug.name}: there is no test {test}; candidates: {found}")
    if not messages:
        try:
            edited_files(tree, bug)
        except LostPlace as error:
            messages.append(f"{bug.name}: {error}")
    return messages


def relocated(tree: Tree, bug: Bug, text: str) -> str:
    """Return the text of a bug file with the paths at which its edits and tests were found."""
    lines = text.split("\n")
    for edit in bug.edits:
        try:
            lines[edit.line] = OPEN + located_file(tree, edit)
        except LostPlace:
            continue
    tests = []
    for test in bug.tests:
        moved = [] if has_test(tree, test) else candidates(tree, test)
        tests.append(moved[0] if len(moved) == 1 else test)
    lines[bug.tests_line] = f"{CAUGHT_BY}: {' '.join(tests)}"
    return "\n".join(lines)
