"""The count of kills for want of memory, in both versions of cgroups. Runs anywhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_checkpoint_provider.coordinator import oom_kills as module
from airflow_checkpoint_provider.coordinator.oom_kills import OomKills, oom_kills

EVENTS = "low 0\nhigh 0\nmax 31\noom 2\noom_kill {}\noom_group_kill 0\n"  # of version 2
CONTROL = "oom_kill_disable 0\nunder_oom 0\noom_kill {}\n"  # of version 1
BOTH = "9:name=systemd:/\n4:memory:/pod/container\n1:cpu:/\n0::/\n"  # a machine with both


def tree(folder: Path, process: str, **files: str) -> tuple[str, Path]:
    """Write what a process sees of its cgroup; ``files`` are counts by their path below the mount, with "__" for "/"."""
    (folder / "cgroup").write_text(process)
    for name, text in files.items():
        path = folder / "mounted" / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return str(folder / "cgroup"), folder / "mounted"


@pytest.mark.parametrize(
    ("process", "files"),
    [
        ("0::/pod/container\n", {"pod__container__memory.events": EVENTS.format(3), "memory.events": EVENTS.format(8)}),
        ("0::/\n", {"memory.events": EVENTS.format(3)}),  # a container with a tree of its own
        ("0::/../../pod\n", {"memory.events": EVENTS.format(3)}),  # the host's path, which is not mounted here
        (BOTH, {"memory__pod__container__memory.oom_control": CONTROL.format(3)}),
        (BOTH, {"memory__memory.oom_control": CONTROL.format(3)}),
    ],
    ids=["2", "2, of a container", "2, path of the host", "1", "1, of a container"],
)
def test_count(tmp_path: Path, process: str, files: dict[str, str]) -> None:
    assert oom_kills(*tree(tmp_path, process, **files)) == 3


@pytest.mark.parametrize(
    ("process", "files"),
    [("", {}), ("nonsense\n", {}), (BOTH, {}), ("0::/\n", {"memory.events": "oom 3\n"})],
    ids=["nothing", "nonsense", "no files", "no count"],
)
def test_count_that_cannot_be_read_is_unknown(tmp_path: Path, process: str, files: dict[str, str]) -> None:
    assert oom_kills(*tree(tmp_path, process, **files)) is None
    assert oom_kills(str(tmp_path / "none"), tmp_path) is None


@pytest.mark.parametrize(
    ("before", "now", "happened"),
    [(3, 4, True), (3, 3, False), (None, 4, False), (3, None, False), (None, None, False)],
)
def test_kill_happened(monkeypatch: pytest.MonkeyPatch, before: int | None, now: int | None, happened: bool) -> None:
    counts = iter((before, now))
    monkeypatch.setattr(module, "oom_kills", lambda: next(counts))
    assert OomKills().happened() is happened
