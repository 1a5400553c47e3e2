"""The page docs/start/first-stream.md: each of its commands runs, and its query survives the kill and the stop. Runs on Linux."""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.first_job import PATIENCE, STREAM_PAGE, Reader, blocks, read
from tests.support.streams import rows_in, sink_log
from tests.support.waiting import wait_until

SCRIPT = "jobs/stream.py"
SUSPENDED = 79
ORDERS, MORE_ORDERS = list(range(1000)), list(range(1100))


def of_page(section: int, language: str = "sh") -> list[str]:
    return blocks(section, language, STREAM_PAGE)


def any_number(line: str) -> str:
    """Return a pattern for a line of the page with any number of a batch."""
    return re.sub(r"batch \d+", r"batch \\d+", line)


def await_running(process: subprocess.Popen[bytes], ready: Callable[[], object], log: Path) -> None:
    """Wait until ``ready`` is true while the driver runs."""
    wait_until(lambda: process.poll() is not None or ready(), PATIENCE, lambda: read(log))
    assert process.poll() is None, read(log)


@pytest.mark.timeout(1800)
def test_killed_query_continues_and_no_order_is_lost_or_doubled(tmp_path: Path) -> None:
    reader, out = Reader(tmp_path, SCRIPT, STREAM_PAGE), tmp_path / "taxed"
    (arrive,) = of_page(2)
    start, kill = of_page(3)
    count, arrive_later = of_page(4)
    look, stop, start_again = of_page(5)
    (repeats,), (counted,) = of_page(3, "text"), of_page(4, "text")
    (continues,) = re.findall(r"`(query 'orders' continues after batch \d+)`", STREAM_PAGE)
    killed, running, resumed = (tmp_path / f"{name}.log" for name in ("killed", "running", "resumed"))

    reader.run("sed -i 's/sleep(0.05)/sleep(0.03)/' jobs/stream.py")  # a person needs longer to kill it
    reader.run(arrive)
    with reader.started(f"exec {start}", killed) as process:
        await_running(process, lambda: sink_log(out), killed)
        reader.run(kill)
        assert process.wait(60) == -signal.SIGKILL
    assert 0 < len(rows_in(out)) < len(ORDERS), "it was killed in the middle"

    with reader.started(f"exec {start}", running) as process:
        await_running(process, lambda: rows_in(out) == ORDERS, running)
        assert re.search(f"{any_number(repeats.strip())}|{any_number(continues)}", read(running)), read(running)
        assert counted in reader.run(count)
        reader.run(arrive_later)
        await_running(process, lambda: rows_in(out) == MORE_ORDERS, running)
        # The sink has the rows before Spark reports the batch, and the heartbeat names what Spark has reported.
        wait_until(lambda: re.search(r"orders +batch 10 ", reader.run(look)), PATIENCE, lambda: read(running), every=1)
        assert "attempt 1" in reader.run(look)
        assert "is suspended" in reader.run(stop)
        assert process.wait(PATIENCE) == SUSPENDED, read(running)

    with reader.started(start_again, resumed) as process:
        await_running(process, lambda: "query 'orders' continues after batch 10" in read(resumed), resumed)
    assert rows_in(out) == MORE_ORDERS
