"""Other releases of Spark than the installed one: pip brings them on first use, 500 MB each. Runs on Linux."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pyspark

from tests.support.drivers import ROOT
from tests.support.runs import Home

INSTALLATION = 1200  # seconds
FOLDER = ROOT / ".sparks"
BESIDE = ("boto3", "protobuf", "pandas<3", "pyarrow")
INSTALLED = ".".join(pyspark.__version__.split(".")[:2])
"""The release with which the tests themselves run."""


def python_with_spark(release: str) -> str:
    """Return the Python of an environment below the checkout that holds PySpark, boto3 for S3, and what ``transformWithState`` needs.

    ``release`` is a minor release, of which the newest is installed, or one with three numbers.
    """
    folder, wanted = FOLDER / release, release if release.count(".") > 1 else f"{release}.*"
    packages = [f"pyspark=={wanted}", *BESIDE]
    complete, described = folder / "complete", "\n".join(packages)
    FOLDER.mkdir(exist_ok=True)
    with (FOLDER / f"{release}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # of several workers that want it, one makes it
        if not complete.exists() or complete.read_text() != described:  # an older checkout wanted other packages
            subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True, timeout=INSTALLATION)
            subprocess.run([folder / "bin" / "pip", "install", "-q", *packages], check=True, timeout=INSTALLATION)
            complete.write_text(described)
    return str(folder / "bin" / "python")


def on_path(python: str) -> dict[str, str]:
    """Return the environment in which ``spark-submit``, and Spark's own Pythons, are those of an environment."""
    return {"PATH": f"{Path(python).parent}{os.pathsep}{os.environ['PATH']}"}


def on_release(folder: Path, script: str, release: str) -> Home:
    """Return a job whose drivers, and what they start, run on a release of Spark."""
    if release == INSTALLED:
        return Home(folder, script)
    python = python_with_spark(release)
    home = Home(folder, script, python=python)
    home.env |= on_path(python)
    return home
