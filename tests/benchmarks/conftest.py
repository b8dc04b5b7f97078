"""The harness of the benchmarks is no package that is installed: it is found beside its command."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
