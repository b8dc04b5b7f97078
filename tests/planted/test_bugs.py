"""Planted bugs find their places in the tree, and the parser refuses what it cannot place."""

from __future__ import annotations

from pathlib import Path

import pytest
from bugs import (
    BadFormat,
    LostPlace,
    Tree,
    candidates,
    edited_files,
    located_file,
    parse_bug,
    problems,
    read_bug,
    relocated,
)
from plant import COPIED, ROOT

SOURCES = sorted(Path(__file__).parent.glob("*.bug"))
HEAD = "Promise: it adds\nCaught by: tests/test_sum.py\n"
EDIT = "\n<<<< src/sum.py\n    return a + b\n====\n    return a - b\n>>>>\n"
SUM = "def add(a, b):\n    return a + b\n"


def tree_of(folder, files):
    files = {"tests/test_sum.py": "def test_add():\n    pass\n", **files}
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(text.encode())
    return Tree(folder, ("src", "tests"))


def edit_of(path, find, replace):
    return f"\n<<<< {path}\n{find}====\n{replace}>>>>\n"


def test_every_planted_bug_finds_its_place_and_its_tests():
    tree = Tree(ROOT, COPIED)
    messages = [message for source in SOURCES for message in problems(tree, read_bug(source))]
    assert SOURCES
    assert not messages, "\n".join(messages)


def test_a_bug_has_headers_and_edits():
    bug = parse_bug("wrong-sign", HEAD + EDIT)
    assert (bug.name, bug.promise, bug.tests) == ("wrong-sign", "it adds", ("tests/test_sum.py",))
    (edit,) = bug.edits
    assert (edit.path, edit.find) == ("src/sum.py", "    return a + b\n")
    assert edit.replace == "    return a - b\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Caught by: tests/test_sum.py\n" + EDIT, "'Promise: ' is missing"),
        ("Promise: it adds\n" + EDIT, "'Caught by: ' is missing"),
        ("Promise:\nCaught by: tests/test_sum.py\n" + EDIT, "line 1: unexpected line"),
        ("Promise: twice\n" + HEAD + EDIT, "line 2: unexpected line"),
        (HEAD + "Note: something\n" + EDIT, "line 3: unexpected line: Note"),
        (HEAD + EDIT + "after the edit\n", "line 9: unexpected line: after"),
        (HEAD, "there is no edit"),
        (HEAD + "<<<< src/sum.py\na\n", "line 3: the edit has no line ===="),
        (HEAD + "<<<< src/sum.py\na\n====\nb\n", "line 3: the edit has no line >>>>"),
        (HEAD + "<<<< src/sum.py\na\n>>>>\n", "line 5: expected ====, got >>>>"),
        (HEAD + "<<<< src/sum.py\na\n====\nb\n====\n", "line 7: expected >>>>, got ===="),
        (HEAD + "<<<< src/sum.py\na\n====\n<<<< src/b.py\n", "line 6: expected >>>>, got <<<<"),
        (HEAD + "<<<< src/sum.py\n\n====\nb\n>>>>\n", "the text to find is empty"),
        (HEAD + "<<<< src/sum.py\na\n====\na\n>>>>\n", "the edit changes nothing"),
    ],
)
def test_a_malformed_bug_is_refused(text, message):
    with pytest.raises(BadFormat, match=message):
        parse_bug("bad", text)


def test_an_edit_replaces_whole_lines(tmp_path):
    tree = tree_of(tmp_path, {"src/sum.py": SUM + "\n\nTEXT = '    return a + b'\n"})
    files = edited_files(tree, parse_bug("bug", HEAD + EDIT))
    changed = "def add(a, b):\n    return a - b\n\n\nTEXT = '    return a + b'\n"
    assert files == {"src/sum.py": changed}


def test_several_edits_of_one_file_apply_in_any_order(tmp_path):
    tree = tree_of(tmp_path, {"src/sum.py": "a\nb\nc\nd\n"})
    edits = [
        edit_of("src/sum.py", "d\n", "a\n"),
        edit_of("src/sum.py", "a\n", ""),
        edit_of("src/sum.py", "b\nc\n", "b\nnew\nc\n"),
    ]
    for text in ("".join(edits), "".join(reversed(edits))):
        files = edited_files(tree, parse_bug("bug", HEAD + text))
        assert files == {"src/sum.py": "b\nnew\nc\na\n"}


def test_edits_that_overlap_are_refused(tmp_path):
    tree = tree_of(tmp_path, {"src/sum.py": "a\nb\nc\n"})
    text = edit_of("src/sum.py", "a\nb\n", "") + edit_of("src/sum.py", "b\nc\n", "")
    bug = parse_bug("bug", HEAD + text)
    assert problems(tree, bug) == ["bug: two edits of src/sum.py overlap"]


def test_a_text_found_twice_in_its_file_is_refused(tmp_path):
    tree = tree_of(tmp_path, {"src/sum.py": SUM + SUM, "src/other.py": SUM})
    bug = parse_bug("bug", HEAD + EDIT)
    with pytest.raises(LostPlace, match=r"src/sum.py contains the text 2 times") as caught:
        located_file(tree, bug.edits[0])
    assert "    |     return a + b" in str(caught.value)


def test_a_text_that_was_not_found_is_shown(tmp_path):
    tree = tree_of(tmp_path, {"src/sum.py": "def add(a, b):\n    return sum((a, b))\n"})
    (message,) = problems(tree, parse_bug("bug", HEAD + EDIT))
    assert message == (
        "bug: has lost its place: src/sum.py does not contain the text, "
        "and no other file contains it. The text is:\n    |     return a + b"
    )


def test_a_text_in_several_other_files_is_ambiguous(tmp_path):
    tree = tree_of(tmp_path, {"src/one.py": SUM, "src/two.py": SUM})
    (message,) = problems(tree, parse_bug("bug", HEAD + EDIT))
    assert "src/sum.py does not exist" in message
    assert "it is in 2 other files: src/one.py, src/two.py" in message


@pytest.mark.parametrize("left", [{}, {"src/sum.py": "from deep.add import add\n"}])
def test_a_text_that_moved_is_found_and_its_new_path_written(tmp_path, left):
    tree = tree_of(tmp_path, {**left, "src/deep/add.py": SUM, "tests/planted/x.bug": HEAD + EDIT})
    bug = parse_bug("bug", HEAD + EDIT)
    assert not problems(tree, bug)
    assert list(edited_files(tree, bug)) == ["src/deep/add.py"]
    assert relocated(tree, bug, HEAD + EDIT) == (HEAD + EDIT).replace("sum.py\n ", "deep/add.py\n ")


def test_an_edit_that_lost_its_place_keeps_its_path_when_others_move(tmp_path):
    tree = tree_of(tmp_path, {"src/deep/add.py": SUM})
    lost = edit_of("src/gone.py", "gone\n", "")
    text = HEAD + EDIT + lost
    assert relocated(tree, parse_bug("bug", text), text) == (
        HEAD + EDIT.replace("src/sum.py", "src/deep/add.py") + lost
    )


def test_a_test_that_moved_is_missing_until_its_path_is_updated(tmp_path):
    moved = {"tests/deep/test_minus.py": "async def test_minus(sign):\n    pass\n"}
    tree = tree_of(tmp_path, {"src/sum.py": SUM, **moved})
    named = "tests/test_sum.py::test_minus[-1]"
    text = HEAD.replace("tests/test_sum.py", named) + EDIT
    new_name = "tests/deep/test_minus.py::test_minus[-1]"
    bug = parse_bug("bug", text)
    assert problems(tree, bug) == [f"bug: there is no test {named}; candidates: {new_name}"]
    new_text = relocated(tree, bug, text)
    assert new_text == text.replace(named, new_name)
    assert not problems(tree, parse_bug("bug", new_text))


@pytest.mark.parametrize(
    ("test", "expected"),
    [
        ("tests/test_sum.py::test_add_all", []),
        ("tests/old/test_sum.py", ["tests/test_sum.py"]),
        ("tests/two/test_twice.py", ["tests/new/two/test_twice.py"]),
        ("tests/test_twice.py", ["tests/new/two/test_twice.py", "tests/one/test_twice.py"]),
        ("tests/old/two/test_none.py", []),
    ],
)
def test_candidates_for_a_missing_test_share_the_end_of_its_path(tmp_path, test, expected):
    tree = tree_of(tmp_path, {"tests/one/test_twice.py": "", "tests/new/two/test_twice.py": ""})
    assert candidates(tree, test) == expected
    text = HEAD.replace("tests/test_sum.py", test) + EDIT
    (header,) = [
        line
        for line in relocated(tree, parse_bug("bug", text), text).split("\n")
        if line.startswith("Caught")
    ]
    assert header == f"Caught by: {expected[0] if len(expected) == 1 else test}"


def test_a_file_that_does_not_end_with_a_newline_is_searched_to_its_end(tmp_path):
    tree = tree_of(tmp_path, {"src/sum.py": SUM.rstrip("\n"), "src/image.png": ""})
    (tmp_path / "src/image.png").write_bytes(b"\xff\xfe")
    files = edited_files(tree, parse_bug("bug", HEAD + EDIT))
    assert files == {"src/sum.py": "def add(a, b):\n    return a - b\n"}
