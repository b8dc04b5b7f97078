"""A bug is caught only by a test that fails, and leaves nothing behind for the next."""

from __future__ import annotations

import pytest
from bugs import parse_bug
from plant import Workspace, try_bug

FILES = {
    "src/planted_sum.py": "def add(a, b):\n    return a + b\n",
    "tests/test_one.py": (
        "from planted_sum import add\n\ndef test_one():\n    assert add(1, 1) == 2\n"
    ),
    "tests/test_two.py": "from planted_sum import add\n\ndef test_two():\n    pass\n",
}


@pytest.fixture
def space(tmp_path, monkeypatch):
    # Most of the time of such a short run goes into plugins that it does not need.
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p pytest_timeout")
    for path, text in FILES.items():
        (tmp_path / "root" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "root" / path).write_text(text)
    return Workspace(tmp_path / "copy", tmp_path / "root", ("src", "tests"))


def bug_of(replacement, tests):
    edit = f"<<<< src/planted_sum.py\n    return a + b\n====\n{replacement}\n>>>>\n"
    return parse_bug("bug", f"Promise: it adds\nCaught by: {tests}\n\n{edit}")


def test_a_failing_test_catches_a_bug_that_is_undone_afterwards(space):
    bug = bug_of("    return a - b", "tests/test_one.py")
    for _ in range(2):
        is_caught, message = try_bug(space, bug)
        assert is_caught, message
        assert message.startswith("caught bug: ")
        assert "FAILED tests/test_one.py::test_one" in message
        assert "\n" not in message
        assert space.run(["tests"]).status == 0
    for path, text in FILES.items():
        assert (space.folder / path).read_text() == text
    assert {entry.name for entry in space.folder.iterdir()} == {"src", "tests"}


def test_a_bug_that_no_test_notices_is_missed(space):
    is_caught, message = try_bug(space, bug_of("    return b + a", "tests/test_one.py"))
    assert not is_caught
    assert message.startswith("MISSED bug: ")
    assert "pytest exit status 0" in message
    assert "1 passed" in message


@pytest.mark.parametrize("tests", ["tests/test_one.py", "tests/test_one.py tests/test_two.py"])
def test_a_test_file_that_cannot_be_imported_catches_nothing(space, tests):
    is_caught, message = try_bug(space, bug_of("    return a +", tests))
    assert not is_caught
    assert message.startswith("MISSED bug: ")
    assert "SyntaxError" in message


def test_an_error_of_usage_catches_nothing_and_is_shown(space):
    bug = bug_of("    return a - b", "tests/test_one.py::test_one[9]")
    is_caught, message = try_bug(space, bug)
    assert not is_caught
    assert "pytest exit status 4" in message
    assert "not found" in message


def test_a_bug_that_lost_its_place_is_missed(space):
    bug = parse_bug("bug", "Promise: x\nCaught by: tests/test_one.py\n<<<< src/x.py\na\n====\n>>>>")
    is_caught, message = try_bug(space, bug)
    assert not is_caught
    assert message.startswith("MISSED bug: has lost its place: src/x.py does not exist")


def test_a_run_that_takes_too_long_is_killed(space):
    (space.folder / "tests/test_one.py").write_text(
        "import time\n\ndef test_one():\n    time.sleep(600)\n"
    )
    run = space.run(["tests/test_one.py"], seconds_max=2)
    assert run.status is None
    assert not run.is_failure
    assert "took too long" in run.details
