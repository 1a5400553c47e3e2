"""How many processes the kernel has killed for want of memory in the cgroup of this process. Runs anywhere.

That is the memory of a container, or of a service of systemd. A process of the same cgroup has the same count: in client mode the task, its
driver and the Python workers of a local master.
"""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

_COUNT = re.compile(r"^oom_kill (\d+)$", re.MULTILINE)
_CGROUPS = Path("/sys/fs/cgroup")


def oom_kills(process: str = "/proc/self/cgroup", mounted: Path = _CGROUPS) -> int | None:
    """Return the count so far; None where it cannot be read: on another system, or in the root of all cgroups."""
    with contextlib.suppress(OSError, ValueError):
        for line in Path(process).read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            # Version 2 has one tree. In version 1 each controller has its own, and a container sees its part of it at the root.
            folder, name = (
                (mounted, "memory.events") if not controllers else (mounted / controllers, "memory.oom_control")
            )
            if controllers in ("", "memory") and (count := _read(folder, path.lstrip("/"), name)) is not None:
                return count
    return None


def _read(folder: Path, path: str, name: str) -> int | None:
    for place in (folder / path, folder):
        with contextlib.suppress(OSError):
            if found := _COUNT.search((place / name).read_text()):
                return int(found[1])
    return None


class OomKills:
    """Notices kills since it was made."""

    def __init__(self) -> None:
        self._before = oom_kills()

    def happened(self) -> bool:
        """Return whether the kernel has killed a process since; False where that cannot be read."""
        now = oom_kills()
        return self._before is not None and now is not None and now > self._before
