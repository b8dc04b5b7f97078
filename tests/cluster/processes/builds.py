"""Other builds of Millstream, for clusters whose nodes do not all run the same one."""

from __future__ import annotations

import io
import shutil
import subprocess
import tarfile
from pathlib import Path

ROOT = Path(__file__).parents[3]
NEXT_VERSION = "99.1.0"

_ADDED = {
    "__init__.py": [('__version__ = "', f'__version__ = "{NEXT_VERSION}" or "')],
    # A tagged field in the handshake, in both directions, and in each fetch of a replica.
    "protocols/peer/handshake.py": [
        (
            "    purpose: int = wire(INT8)\n",
            '    purpose: int = wire(INT8)\n    build: str = wire(STRING, default="", tag=40)\n',
        ),
        (
            '    software_version: str = wire(STRING, default="")\n',
            '    software_version: str = wire(STRING, default="")\n'
            '    build: str = wire(STRING, default="", tag=40)\n',
        ),
    ],
    "clients/peer/connection.py": [
        ("            apis=ANNOUNCED,\n", "            apis=ANNOUNCED, build='next',\n")
    ],
    "servers/peer/peer_protocol.py": [
        ("            apis=ANNOUNCED,\n", "            apis=ANNOUNCED, build='next',\n")
    ],
    "protocols/peer/messages/peer_fetch.py": [
        (
            "    revision: int = wire(INT64, default=0, tag=2)\n",
            "    revision: int = wire(INT64, default=0, tag=2)\n"
            "    later: int = wire(INT64, default=0, tag=41)\n",
        )
    ],
    "cluster/replication/replica_fetcher.py": [
        (
            "        revision=fetch.revision,\n",
            "        revision=fetch.revision, later=7,\n",
        )
    ],
    # A field in the rows of nodes and of partitions in etcd.
    "cluster/control/node_row.py": [
        ("    is_stopping: bool = False\n", "    is_stopping: bool = False\n    later: int = 7\n")
    ],
    "cluster/replication_state.py": [
        (
            "    return msgspec.json.encode(_Stored(version=VERSION, **fields))\n",
            "    row = msgspec.to_builtins(_Stored(version=VERSION, **fields))\n"
            "    return msgspec.json.encode({**row, 'later': 7})\n",
        )
    ],
}
"""What the next build has, by file: text of this one, and by what it is replaced."""


def copy_next_build(directory: Path) -> Path:
    """Make a build that a later release might be, and return its source directory.

    It has another version, and adds fields that this build does not know, to messages between nodes
    and to rows in etcd, within the same versions of protocol and formats.
    """
    package = directory / "millstream"
    shutil.copytree(
        ROOT / "src" / "millstream", package, ignore=shutil.ignore_patterns("__pycache__")
    )
    for name, edits in _ADDED.items():
        text = (package / name).read_text()
        for old, new in edits:
            assert text.count(old) == 1, f"{name} has {text.count(old)} times {old!r}"
            text = text.replace(old, new)
        (package / name).write_text(text)
    return directory


def copy_commit(commit: str, directory: Path) -> Path:
    """Copy the source of an earlier commit, and return its source directory."""
    command = ["git", "-C", str(ROOT), "archive", commit, "src"]
    archive = subprocess.run(command, capture_output=True, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        files.extractall(directory, filter="data")
    return directory / "src"
