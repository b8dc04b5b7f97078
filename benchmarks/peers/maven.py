"""Jars by Maven coordinates, downloaded once and kept beside the benchmarks."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

from measure.peers import PeerMissing

from peers.processes import found

KEPT = Path(__file__).parents[1] / ".peers"
_SECONDS_MAX = 600


def jars(group: str, artifact: str, version: str) -> list[Path]:
    """Return an artifact with all that it needs at run time, from Maven the first time."""
    folder = _folder(artifact, version)
    if not folder.exists():
        _bring(group, artifact, version, folder)
    return kept_jars(artifact, version)


def kept_jars(artifact: str, version: str) -> list[Path]:
    """Return the jars that were downloaded before; none otherwise."""
    return sorted(_folder(artifact, version).glob("*.jar"))


def _folder(artifact: str, version: str) -> Path:
    return KEPT / f"{artifact}-{version}"


def _bring(group: str, artifact: str, version: str, folder: Path) -> None:
    mvn = found("mvn", "maven")
    KEPT.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=KEPT) as scratch:
        project, target = Path(scratch, "pom.xml"), Path(scratch, "jars")
        project.write_text(_project(group, artifact, version))
        command = [
            *(mvn, "--quiet", "--batch-mode", "--file", str(project)),
            *("dependency:copy-dependencies", "-DincludeScope=runtime"),
            f"-DoutputDirectory={target}",
        ]
        try:
            subprocess.run(
                command, check=True, timeout=_SECONDS_MAX, capture_output=True, text=True
            )
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
            raise PeerMissing(f"Maven cannot bring {group}:{artifact}:{version}") from error
        # Renamed when complete: a folder that exists has everything.
        shutil.move(target, folder)


def _project(group: str, artifact: str, version: str) -> str:
    return f"""<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>millstream</groupId>
  <artifactId>benchmark-peers</artifactId>
  <version>1</version>
  <dependencies>
    <dependency>
      <groupId>{group}</groupId>
      <artifactId>{artifact}</artifactId>
      <version>{version}</version>
    </dependency>
  </dependencies>
</project>
"""
