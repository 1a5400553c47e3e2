"""The machine on which the benchmarks run. Runs on Linux."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import subprocess
from datetime import UTC, datetime

from benchmarks.answers import Machine


def this_machine() -> Machine:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Machine(
        day=datetime.now(UTC).date().isoformat(),
        cores=os.cpu_count() or 1,
        memory_gb=round(memory / 2**30),
        python=platform.python_version(),
        spark=importlib.metadata.version("pyspark"),
        java=_java(),
    )


def _java() -> str:
    """Return the version of the Java that Spark would use."""
    home = os.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else "java"
    said = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=True).stderr
    found = re.search(r'version "([^"]+)"', said)
    return found[1] if found else "unknown"
