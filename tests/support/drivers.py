"""Spark drivers of their own, for tests that kill them or compare two. Runs on Linux."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[2]
JARS = ROOT / ".jars"
"""What Spark needs for S3; ``make`` brings them."""
QUICK_JVM = (
    "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=160m -XX:+UseSerialGC -Xlog:cds=off -Xlog:cds+dynamic=off"
)
"""JVM options for little work. The archive of classes is only a help: the JVM need not say why it does not fit. With one compiler the
code cache has 48 MB by default; a driver of ten queries fills it, and goes on without any compiler."""
CLASSES = Path(sys.prefix) / "spark-classes.jsa"
"""The archive of classes; ``make`` records it with ``tests.support.classes``."""
WITH_S3A = {"SPARK_DIST_CLASSPATH": f"{JARS}/*"}
"""With this in its environment a driver has them, as in a cluster whose image holds them: after Spark's own."""


def quick_jvms() -> dict[str, str]:
    """Return the environment with which ``spark-submit`` and its drivers start quickly."""
    classes = f"-XX:SharedArchiveFile={CLASSES}" if CLASSES.exists() else ""
    return {"SPARK_LAUNCHER_OPTS": QUICK_JVM, "SPARK_SUBMIT_OPTS": f"{QUICK_JVM} {classes}"}


def fast_confs(folder: Path) -> dict[str, str]:
    """Confs with which a session starts and works quickly, and leaves nothing outside ``folder``."""
    return {
        "spark.driver.memory": "1g",
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "OFF",  # many tests make tasks fail; what Spark says then is asserted from the exception
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.local.dir": str(folder / "local"),
    }


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", **more}


@contextmanager
def started(command: list[str], log: Path, **more: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process group of its own that writes to ``log`` and is gone afterwards, whatever it did."""
    with log.open("wb") as out:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            env=environment(**more),
            start_new_session=True,
        )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(10)


def submit(folder: Path, script: Path, *arguments: str, **confs: str) -> list[str]:
    """The command line of ``spark-submit`` for a local driver."""
    given = {**fast_confs(folder), **confs}
    options = [word for name, value in given.items() for word in ("--conf", f"{name}={value}")]
    return [
        str(Path(sys.executable).with_name("spark-submit")),
        "--master",
        "local[2]",
        *options,
        str(script),
        *arguments,
    ]


def wait_for_line(log: Path, wanted: str, process: subprocess.Popen[bytes], seconds: float = 200) -> str:
    """The rest of the first line in ``log`` that starts with ``wanted``; fails when the process ends first, or time is up."""

    def found() -> list[str]:
        lines = log.read_text(errors="replace").splitlines()
        return [line.removeprefix(wanted).strip() for line in lines if line.startswith(wanted)]

    def said() -> str:
        return f"no line {wanted!r} in:\n{log.read_text(errors='replace')[-3000:]}"

    wait_until(lambda: found() or process.poll() is not None, seconds, said, every=0.05)
    lines = found()
    assert lines, said()
    return lines[0]
