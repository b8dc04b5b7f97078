"""What every `Filesystem` must pass, the real one and the fakes alike.

Subclass `FilesystemSuite` and give it two fixtures: `filesystem`, and `root`, the path of an empty
directory in it.
"""

from __future__ import annotations

from millstream.testing.suites.file_suite import FileSuite
from millstream.testing.suites.names_suite import NamesSuite


class FilesystemSuite(FileSuite, NamesSuite):
    """What every `Filesystem` must pass."""
