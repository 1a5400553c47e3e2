"""The pages for new users, docs/start: their commands by section, their files, and a reader who runs them. Runs on Linux."""

from __future__ import annotations

import re
import signal
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.support.drivers import ROOT, environment, fast_confs
from tests.support.processes import send
from tests.support.stack import MARK, Part
from tests.support.waiting import wait_until

PAGE, STREAM_PAGE = ((ROOT / "docs" / "start" / name).read_text() for name in ("first-job.md", "first-stream.md"))
PATIENCE = 400  # seconds for one driver, or for the start of Airflow; each takes half a minute on an idle machine


def blocks(section: int, language: str = "sh", page: str = PAGE) -> list[str]:
    """Return the blocks of a section, in their order."""
    (text,) = re.findall(rf"^## {section}\. (.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL)
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def save_files(folder: Path, page: str = PAGE) -> None:
    """Save the files that the page tells its reader to save."""
    found = re.findall(
        r"[Ss]ave (?:it|th\w+ \w+) as `([\w/.]+)`.*?```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL
    )
    for name, text in found:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def read(log: Path) -> str:
    return log.read_text(errors="replace") if log.exists() else ""


class Reader:
    """A reader of a page, in a folder with the files to save. The script has its whole path, so that no other job is killed."""

    def __init__(self, folder: Path, script: str, page: str = PAGE) -> None:
        self.folder, self._script = folder, script
        save_files(folder, page)
        confs = " ".join(f"--conf {name}={value}" for name, value in fast_confs(folder).items())
        self.env = environment(PYSPARK_SUBMIT_ARGS=f"{confs} pyspark-shell", CHECKPOINT_HEARTBEAT_SECONDS="1")

    def run(self, commands: str) -> str:
        """Run commands of the page, and return their output."""
        done = subprocess.run(  # by stdin: pgrep would find the command among the arguments
            ["bash", "-e"], input=self._mine(commands), cwd=self.folder, env=self.env, capture_output=True,
            text=True, timeout=PATIENCE, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    @contextmanager
    def started(self, commands: str, log: Path) -> Iterator[subprocess.Popen[bytes]]:
        """Start commands of the page in another terminal. Nothing that they started is left afterwards."""
        mark = uuid.uuid4().hex
        with log.open("wb") as out:
            process = subprocess.Popen(
                ["bash", "-ec", self._mine(commands)], cwd=self.folder, env={**self.env, MARK: mark},
                stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True,
            )  # fmt: skip
        part = Part(mark, process)

        def swept() -> bool:  # a process may start another one while we look
            send(part.all_pids(), signal.SIGKILL)
            return not part.all_pids()

        try:
            yield process
        finally:
            wait_until(swept, say=lambda: f"{commands} left {part.all_pids()}")
            with suppress(subprocess.TimeoutExpired):
                process.wait(10)

    def _mine(self, commands: str) -> str:
        return commands.replace(self._script, f"{self.folder}/{self._script}")
