"""Rules for every command: its help has a purpose, and its output can be parsed."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from millstream.cli.main import main
from millstream.cli.support.command_group import walk
from millstream.cli.support.exit import Exit
from millstream.cli.support.options import VARIABLES
from millstream.clients.http.core.token import TOKEN_FILE_VARIABLE, TOKEN_VARIABLE
from millstream.clients.kafka.login import PASSWORD_VARIABLE
from millstream.testing.broker import RunningBroker

COMMANDS = dict(walk(main))
VERBS = {name: one for name, one in COMMANDS.items() if not isinstance(one, click.Group)}
NOUNS = {name: one for name, one in COMMANDS.items() if isinstance(one, click.Group)}

WITHOUT_JSON = {
    "millstream access certs": "prints paths of files",
    "millstream cluster dev": "prints lines that programs wait for",
    "millstream completion": "prints a script for a shell",
    "millstream config check": "prints one line",
    "millstream pipeline explain": "prints what Spark says",
    "millstream queue work": "prints what its command prints",
    "millstream segments dump": "prints JSON always",
    "millstream serve": "prints lines that programs wait for",
}
"""Commands without --json, and the reason."""


def help_of(name: str) -> str:
    result = CliRunner().invoke(main, [*name.split()[1:], "--help"])
    assert result.exit_code == 0, result.output
    return result.stdout


def section(text: str, title: str) -> list[str]:
    """Return the lines below a title, up to the next empty line."""
    _, found, rest = text.partition(f"  {title}:\n")
    assert found, f"there is no {title!r} in it"
    return rest.split("\n\n")[0].splitlines()


def test_all_nouns_are_there() -> None:
    assert {"serve", "topic", "group", "queue", "segments", "pipeline", "jobs", "bench", "config",
            "completion"} <= set(main.list_commands(click.Context(main)))  # fmt: skip


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_says_in_a_sentence_what_it_does(name: str) -> None:
    summary = COMMANDS[name].get_short_help_str(200)
    assert len(summary) > 10
    assert not summary.endswith("...")


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_has_an_example_that_is_one_of_it(name: str) -> None:
    for line in section(help_of(name), "Example"):
        assert line.strip().startswith(f"{name} ") or line.strip() == name, line


@pytest.mark.parametrize("name", COMMANDS)
def test_every_example_uses_options_that_exist(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("alice.password").touch()
    Path("orders.toml").touch()  # Files that the examples need.
    Path("pipelines").mkdir()
    Path("millstream-data").mkdir()
    for line in section(help_of(name), "Example"):
        words = shlex.split(re.split(" [<>] ", line)[0])[1:]
        found: click.Command | None = main
        while isinstance(found, click.Group):
            if found.invoke_without_command and words[0].startswith("--"):
                break  # A command that has others below it, such as `bench`.
            found = found.get_command(click.Context(found), words.pop(0))
        assert found is not None
        found.make_context("millstream", words)


@pytest.mark.parametrize("name", VERBS)
def test_a_command_says_what_its_exit_status_means(name: str) -> None:
    codes = [re.match(r" +([0-9]+)  \S", line) for line in section(help_of(name), "Exit status")]
    found = [int(match[1]) for match in codes if match]
    assert found == sorted(found)
    assert {0, 2} <= set(found) <= {*Exit}


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_says_what_it_is_for(name: str) -> None:
    for parameter in COMMANDS[name].params:
        if isinstance(parameter, click.Option):
            assert parameter.help, parameter.name
            assert parameter.help[0].isupper(), parameter.name
            assert len(parameter.help) > 10, parameter.name
            assert parameter.opts[0].startswith("--"), parameter.name


@pytest.mark.parametrize("name", VERBS)
def test_what_prints_data_can_print_it_as_json(name: str) -> None:
    has_json = any("--json" in one.opts for one in VERBS[name].params)
    assert has_json != (name in WITHOUT_JSON)


@pytest.mark.parametrize("name", COMMANDS)
def test_help_fits_on_a_terminal(name: str) -> None:
    assert all(len(line) <= 100 for line in help_of(name).splitlines())


def test_the_variables_that_commands_read_are_known_to_the_configuration() -> None:
    """Otherwise a node would report them as misspelt settings."""
    found = {
        one.envvar
        for name, command in COMMANDS.items()
        for one in command.params
        if isinstance(one.envvar, str)
    }
    assert found | {PASSWORD_VARIABLE, TOKEN_VARIABLE, TOKEN_FILE_VARIABLE} == VARIABLES


@pytest.mark.parametrize(
    ("words", "meant"),
    [(("topik",), "topic"), (("topic", "creat"), "create"), (("jobs", "reply"), "replay")],
)
def test_a_mistyped_command_is_answered_with_what_was_meant(
    words: tuple[str, ...], meant: str
) -> None:
    result = CliRunner().invoke(main, words)
    assert result.exit_code == Exit.USAGE
    assert re.search(rf"Did you mean ([\w-]+(, | or ))*{meant}\b.*\?", result.stderr)


def test_a_command_that_is_like_no_other_is_answered_without_a_guess() -> None:
    result = CliRunner().invoke(main, ["\x1b[2J"])
    assert result.exit_code == Exit.USAGE
    assert "Did you mean" not in result.stderr
    assert "\x1b" not in result.stderr


HEAVY = (
    "numpy",
    "numba",
    "pyarrow",
    "pyspark",
    "uvloop",
    "starlette",
    "prometheus_client",
)


@pytest.mark.parametrize(
    "words",
    [
        ["--version"],
        ["topic", "list"],
        ["topic", "append", "orders", "--value", "a"],
        ["topic", "tail", "orders"],
        ["group", "list"],
        ["queue", "list"],
    ],
    ids=" ".join,
)
def test_a_command_loads_only_what_it_needs(words: list[str]) -> None:
    code = (
        "import sys\n"
        "from millstream.cli.main import main\n"
        "try:\n"
        f"    main({words!r})\n"
        "except SystemExit:\n"
        "    pass\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules])\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", code],
        env={"MILLSTREAM_SERVER": "http://127.0.0.1:1", "PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.stdout.splitlines()[-1:] == ["[]"], result.stdout + result.stderr


@pytest.mark.parametrize(
    "words",
    [["topic", "list"], ["topic", "describe", "orders"], ["group", "list"], ["queue", "list"]],
    ids=" ".join,
)
def test_a_command_that_shows_a_table_loads_neither_the_client_nor_a_library_for_tables(
    node: RunningBroker, words: list[str]
) -> None:
    result = CliRunner().invoke(main, ["topic", "create", "orders", "--server", node.url])
    assert result.exit_code == 0, result.output
    code = (
        "import sys\n"
        "from millstream.cli.main import main\n"
        f"main({[*words, '--server', node.url]!r}, standalone_mode=False)\n"
        f"print([name for name in {(*HEAVY, *UNUSED)!r} if name in sys.modules])\n"
    )
    shown = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert shown.stdout.splitlines()[-1:] == ["[]"], shown.stdout + shown.stderr


UNUSED = ("rich", "msgspec", "millstream.clients.http.sync.client", "logging", "ssl", "difflib")
"""Modules that take longer to load than a listing takes, and that none needs."""


@pytest.mark.parametrize(
    ("words", "unused"),
    [
        (["--help"], ("millstream.storage", "millstream.broker", "millstream.config.keys")),
        (["segments", "--help"], ("millstream.storage", "millstream.broker")),
        (["segments", "list"], ("millstream.storage.store", "millstream.broker")),
        (["segments", "verify"], ("millstream.storage.store", "millstream.broker")),
        (["verify"], ("millstream.storage.store", "millstream.broker.broker")),
    ],
    ids=str,
)
def test_what_needs_no_node_loads_none(
    words: list[str], unused: tuple[str, ...], tmp_path: Path
) -> None:
    code = (
        "import sys\n"
        "from millstream.cli.main import main\n"
        "try:\n"
        f"    main({words!r})\n"
        "except SystemExit:\n"
        "    pass\n"
        f"print([name for name in {unused!r} if name in sys.modules])\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", code],
        env={"MILLSTREAM_DATA": str(tmp_path), "PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.stdout.splitlines()[-1:] == ["[]"], result.stdout + result.stderr


@pytest.mark.parametrize("name", NOUNS)
def test_the_help_of_a_group_lists_its_commands_with_their_first_sentences(name: str) -> None:
    below = {verb.split()[-1]: one for verb, one in COMMANDS.items() if is_below(verb, name)}
    code = "from millstream.cli.main import main; main()"
    alone = subprocess.run(
        [sys.executable, "-c", code, *name.split()[1:], "--help"],
        env={"PYTHONPATH": ":".join(sys.path), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=True,
    )
    listed = alone.stdout.partition("\nCommands:\n")[2].splitlines()
    for line, (verb, command) in zip(listed, below.items(), strict=True):
        shown, summary = line.split(maxsplit=1)
        assert shown == verb
        assert command.get_short_help_str(200).startswith(summary.removesuffix("..."))


def is_below(verb: str, name: str) -> bool:
    return verb.rpartition(" ")[0] == name
