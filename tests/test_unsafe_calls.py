"""No code of ours evaluates, unpickles or passes to a shell what it is given.

`bandit` finds these too; this needs nothing installed, and says which file and line.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import millstream

ROOT = Path(millstream.__file__).parent

MODULES = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "telnetlib", "xml", "lxml"}
"""Not to be imported: they execute what they load, expand entities or speak in clear text."""

CALLS = {
    "eval", "exec", "compile", "os.system", "os.popen", "yaml.load", "yaml.unsafe_load",
    "tempfile.mktemp", "ssl._create_unverified_context", "hashlib.md5", "hashlib.sha1",
}  # fmt: skip

ALLOWED = {
    ("protocols/kafka/codec/source_builder.py", "exec"),
    ("protocols/kafka/codec/source_builder.py", "compile"),
}
"""The codec compiles the messages that are declared in this tree; nothing of it is input."""


def calls_of(tree: ast.AST) -> Iterator[tuple[str, ast.Call]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node


def findings(path: Path) -> Iterator[tuple[str, str, int]]:
    name = str(path.relative_to(ROOT))
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        modules: list[str] = []
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            modules = [node.module or ""]
        for module in modules:
            if module.partition(".")[0] in MODULES:
                yield name, module, node.lineno
    for called, call in calls_of(tree):
        is_shell = any(
            word.arg == "shell" and ast.unparse(word.value) != "False" for word in call.keywords
        )
        is_unverified = any(
            word.arg in ("verify", "check_hostname")
            and isinstance(word.value, ast.Constant)
            and word.value.value is False
            for word in call.keywords
        )
        if called in CALLS or is_shell or is_unverified:
            yield name, called, call.lineno


def test_nothing_is_evaluated_unpickled_or_passed_to_a_shell() -> None:
    found = [
        finding
        for path in sorted(ROOT.rglob("*.py"))
        for finding in findings(path)
        if finding[:2] not in ALLOWED
    ]
    assert found == []


def test_the_search_finds_what_it_is_for() -> None:
    text = "import pickle\nimport subprocess\neval('1')\nsubprocess.run('ls', shell=True)\n"
    tree = ast.parse(text)
    assert [name for name, _ in calls_of(tree)] == ["eval", "subprocess.run"]
