"""Jars that only some tests need: Maven fetches them on first use. Runs on Linux.

``tests/NAME/pom.xml`` says which, ``tests/NAME/jars.sha256`` has their checksums, and they come into ``.NAME`` below the checkout.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.support.downloads import put
from tests.support.drivers import ROOT

DOWNLOAD = 500.0  # seconds; it takes twenty
TAIL = 2_000  # bytes of what Maven says


class NoJars(Exception):
    """This machine cannot have the jars; says why."""


def fetched(name: str) -> Path:
    """Return the folder with the jars of ``tests/NAME``; filled on first use. Raises ``NoJars``."""
    folder = ROOT / f".{name}"
    if not folder.exists():
        if not shutil.which("mvn"):
            raise NoJars(f"the jars of {name} are fetched by Maven, and there is no mvn")
        with TemporaryDirectory(prefix=f".{name}-", dir=ROOT) as temporary:
            _fetch(ROOT / "tests" / name, Path(temporary) / "jars")
            put(Path(temporary) / "jars", folder)
    return folder


def of_release(name: str, made_for: str, release: str) -> list[Path]:
    """Return the jars of ``tests/NAME`` for a release of Spark: of those that begin with ``made_for``, only the one for it."""
    return [
        jar for jar in fetched(name).glob("*.jar") if not jar.name.startswith(made_for) or f"{release}_2.13" in jar.name
    ]


def _fetch(described: Path, folder: Path) -> None:
    """Fetch the jars, and compare each with its checksum."""
    pom = str(described / "pom.xml")
    command = ["mvn", "-B", "-q", "-f", pom, "dependency:copy-dependencies", f"-DoutputDirectory={folder}"]
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=DOWNLOAD, check=False
    )
    if done.returncode:
        raise RuntimeError(f"Maven ended with {done.returncode}:\n{(done.stdout + done.stderr)[-TAIL:]}")
    sums = (described / "jars.sha256").read_text().splitlines()
    wanted = {name: checksum for checksum, name in (line.split() for line in sums)}
    found = {jar.name: hashlib.sha256(jar.read_bytes()).hexdigest() for jar in folder.iterdir()}
    if found != wanted:
        raise RuntimeError(f"Maven brought other jars than {described}: {sorted(found.items() ^ wanted.items())}")
