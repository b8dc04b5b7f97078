"""`make wheel`: a wheel with everything that a node serves, and an sdist that builds it again."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.deploy.files import ROOT, instructions

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    build(ROOT, folder)
    return folder


def build(source: Path, folder: Path, *kinds: str) -> None:
    command = [sys.executable, "-m", "build", "--no-isolation", *kinds, "--outdir", folder, source]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def wheel_files(folder: Path) -> set[str]:
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def test_the_wheel_has_every_file_of_the_package_and_nothing_else(built):
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "src"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    present = (name for name in listed.stdout.split() if (ROOT / name).is_file())
    expected = {name.removeprefix("src/") for name in present}
    packaged = {name for name in wheel_files(built) if ".dist-info/" not in name}
    assert packaged == expected
    assert "millstream/servers/http/console/static/index.html" in packaged


def test_the_sdist_builds_the_same_wheel(built, tmp_path):
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    (source,) = tmp_path.iterdir()
    build(source, tmp_path / "dist", "--wheel")
    assert wheel_files(tmp_path / "dist") == wheel_files(built)


def test_the_image_has_the_extras_that_the_guide_names():
    guide = (ROOT / "docs/guides/installing.md").read_text()
    assert "contains `arrow` and `otel`" in guide
    (installed,) = [rest for word, rest in instructions() if word == "RUN" and "pip wheel" in rest]
    assert installed.count("[arrow,otel]'") == 2
