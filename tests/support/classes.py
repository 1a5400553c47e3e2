"""Records the classes that a Spark driver loads: with this archive the tests' drivers start in half the time. Runs on Linux.

python -m tests.support.classes ARCHIVE
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from tests.support.drivers import QUICK_JVM
from tests.support.runs import Home


def main(archive: str) -> None:
    unfinished = Path(f"{archive}.unfinished").absolute()
    os.environ["SPARK_SUBMIT_OPTS"] = f"{QUICK_JVM} -XX:ArchiveClassesAtExit={unfinished}"
    with tempfile.TemporaryDirectory(prefix="spark-classes-") as folder:
        ended = Home(Path(folder)).run(submit=True)
    if ended.code:
        sys.exit(ended.log)
    os.replace(unfinished, archive)


if __name__ == "__main__":
    main(*sys.argv[1:])
