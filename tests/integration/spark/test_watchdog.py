"""No driver outlives its JVM or misses a SIGTERM, whatever its main thread is doing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from airflow_checkpoint_provider.protocol.handover import ExitCode
from airflow_checkpoint_provider.spark.process.watchdog import jvm_pid
from tests.support.drivers import environment, started, submit, wait_for_line
from tests.support.processes import alive, command
from tests.support.waiting import wait_until

JVM = """
from pyspark.java_gateway import launch_gateway
jvm = launch_gateway().jvm
pid = jvm.java.lang.ProcessHandle.current().pid()
"""
CHILD = """
import subprocess
pid = subprocess.Popen(["sleep", "600"]).pid
"""
WATCHED = """
import os, signal
from airflow_checkpoint_provider.protocol.handover import ExitCode
from airflow_checkpoint_provider.spark.process.exits import leave
from airflow_checkpoint_provider.spark.process.watchdog import Watchdog

def say(*words):
    print(*words, flush=True)

def terminated():
    say("TERM seen")
    leave(ExitCode.OVER, "LAST this driver is over")

watchdog = Watchdog(pid, lambda: say("JVM gone"), terminated).start()
say("WATCHED", os.getpid(), pid)
"""
LOOP = "while True: sum(range(1000))\n"
BLOCKED = "jvm.java.lang.Thread.sleep(60_000)\n"
# The fork sleeps in short turns: Python runs a handler between two calls, and `signal.pause` would lose a signal that comes just before it.
FORK = """
import time
hears, says = os.pipe()
child = os.fork()
if not child:
    os.write(says, b"!")
    while True: time.sleep(0.01)
os.read(hears, 1)
os.kill(child, signal.SIGTERM)
say("CHILD", os.waitpid(child, 0)[1])
"""


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


def _script(tmp_path: Path, *parts: str, watched: str = JVM) -> Path:
    path = tmp_path / "app.py"
    path.write_text("".join(map(textwrap.dedent, (watched, WATCHED, *parts))))
    return path


def _pids(log: Path, process: subprocess.Popen[bytes]) -> tuple[int, int]:
    """Of the Python driver and of its JVM, once the watch has begun."""
    driver, jvm = map(int, wait_for_line(log, "WATCHED", process).split())
    return driver, jvm


def _gone(pid: int, seconds: float) -> None:
    wait_until(lambda: not alive(pid), seconds, lambda: f"process {pid} lives: {command(pid)}", every=0.02)


def test_driver_ends_when_its_jvm_dies_while_python_loops(tmp_path: Path, log: Path) -> None:
    with started([sys.executable, str(_script(tmp_path, FORK, LOOP))], log) as process:
        _, jvm = _pids(log, process)
        assert wait_for_line(log, "CHILD", process) == str(int(signal.SIGTERM)), (
            "a signal to a fork is the fork's alone"
        )
        os.kill(jvm, signal.SIGKILL)
        assert process.wait(60) == ExitCode.FAILED
    lines = log.read_text().splitlines()
    assert lines[-2] == "JVM gone"
    assert lines[-1].endswith("is gone; the driver ends with it")
    assert "TERM seen" not in lines


def test_sigterm_ends_a_driver_that_is_blocked_in_a_call(tmp_path: Path, log: Path) -> None:
    with started([sys.executable, str(_script(tmp_path, BLOCKED))], log) as process:
        driver, jvm = _pids(log, process)
        os.kill(driver, signal.SIGTERM)
        assert process.wait(30) == ExitCode.OVER  # the call blocks for 60
        _gone(jvm, 60)
    assert log.read_text().splitlines()[-2:] == ["TERM seen", "LAST this driver is over"]


def test_exit_code_79_passes_through_spark_submit(tmp_path: Path, log: Path) -> None:
    with started(submit(tmp_path, _script(tmp_path, BLOCKED)), log) as process:
        driver, jvm = _pids(log, process)
        assert jvm == process.pid
        os.kill(driver, signal.SIGTERM)
        assert process.wait(30) == 79
    assert log.read_text().splitlines()[-1] == "LAST this driver is over"


STOPPED = """
watchdog.stop()
say("STOPPED", signal.getsignal(signal.SIGTERM) is signal.SIG_DFL)
os.kill(os.getpid(), signal.SIGTERM)
"""


def test_stop_restores_the_handler_of_sigterm(tmp_path: Path, log: Path) -> None:
    with started([sys.executable, str(_script(tmp_path, STOPPED, watched=CHILD))], log) as process:
        assert process.wait(60) == -signal.SIGTERM
    assert "STOPPED True" in log.read_text().splitlines()


STUCK = """
import sys, threading
from airflow_checkpoint_provider.spark.process import exits
exits.PRINT_TIMEOUT = 0.5
threading.Timer(0.5, exits.leave, (79, "never read")).start()
sys.stdout.write("x" * 10_000_000)
"""


def test_driver_ends_although_nobody_reads_its_streams(tmp_path: Path) -> None:
    silent = subprocess.Popen([sys.executable, "-c", STUCK], stdout=subprocess.PIPE, env=environment())
    try:
        assert silent.wait(60) == 79
    finally:
        silent.kill()
        silent.communicate()


def test_jvm_pid_is_the_jvm_of_the_session(spark: SparkSession) -> None:
    assert "java" in command(jvm_pid(spark))[0]
