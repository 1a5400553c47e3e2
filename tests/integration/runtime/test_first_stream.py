"""The page docs/start/first-stream.md: each of its commands runs, and its query survives the kill and the stop. Runs on Linux."""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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


@contextmanager
def started_again_after_a_kill(reader: Reader, out: Path) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """Yield the second driver of the query, which has read all orders, and its log. The first driver was killed in the middle."""
    (arrive,) = of_page(2)
    start, kill = of_page(3)
    (repeats,) = of_page(3, "text")
    (continues,) = re.findall(r"`(query 'orders' continues after batch \d+)`", STREAM_PAGE)
    killed, running = (reader.folder / f"{name}.log" for name in ("killed", "running"))

    reader.run("sed -i 's/sleep(0.05)/sleep(0.01)/' jobs/stream.py")  # a person needs longer to kill it
    reader.run(arrive)
    with reader.started(f"exec {start}", killed) as process:
        await_running(process, lambda: sink_log(out), killed)
        reader.run(kill)
        assert process.wait(60) == -signal.SIGKILL
    assert 0 < len(rows_in(out)) < len(ORDERS), "it was killed in the middle"

    with reader.started(f"exec {start}", running) as process:
        await_running(process, lambda: rows_in(out) == ORDERS, running)
        assert re.search(f"{any_number(repeats.strip())}|{any_number(continues)}", read(running)), read(running)
        yield process, running


@pytest.mark.timeout(1800)
def test_killed_query_continues_and_no_order_is_lost_or_doubled(tmp_path: Path) -> None:
    reader, out = Reader(tmp_path, SCRIPT, STREAM_PAGE), tmp_path / "taxed"
    _, stop, start_again = of_page(5)
    restore, _ = start_again.splitlines()
    with started_again_after_a_kill(reader, out) as (process, log):
        assert "is suspended" in reader.run(stop)
        assert process.wait(PATIENCE) == SUSPENDED, read(log)
    reader.run(restore)
    assert rows_in(out) == ORDERS


@pytest.mark.slow  # the one above, without the last start; test_query_refusals.py restores a query and lets it go on
@pytest.mark.timeout(1800)
def test_query_of_the_page_is_counted_looked_at_stopped_and_started_again(tmp_path: Path) -> None:
    reader, out = Reader(tmp_path, SCRIPT, STREAM_PAGE), tmp_path / "taxed"
    count, arrive_later = of_page(4)
    look, stop, start_again = of_page(5)
    (counted,) = of_page(4, "text")
    with started_again_after_a_kill(reader, out) as (process, log):
        assert counted in reader.run(count)
        reader.run(arrive_later)
        await_running(process, lambda: rows_in(out) == MORE_ORDERS, log)
        # The sink has the rows before Spark reports the batch, and the heartbeat names what Spark has reported.
        wait_until(lambda: re.search(r"orders +batch 10 ", reader.run(look)), PATIENCE, lambda: read(log), every=1)
        assert "attempt 1" in reader.run(look)
        assert "is suspended" in reader.run(stop)
        assert process.wait(PATIENCE) == SUSPENDED, read(log)

    resumed = tmp_path / "resumed.log"
    with reader.started(start_again, resumed) as process:
        await_running(process, lambda: "query 'orders' continues after batch 10" in read(resumed), resumed)
    assert rows_in(out) == MORE_ORDERS
