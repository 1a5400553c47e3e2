"""Ceph for the tests of stores: refused on other systems, and no process outlives it. Runs on Linux."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from tests.support import ceph
from tests.support.processes import environment, find


def test_other_system_is_refused_with_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    system = {"ID": "ubuntu", "VERSION_ID": "24.04", "PRETTY_NAME": "Ubuntu 24.04 LTS"}
    monkeypatch.setattr(ceph, "UNPACKED", tmp_path / "absent")
    monkeypatch.setattr(platform, "freedesktop_os_release", lambda: system)
    with pytest.raises(ceph.NoCeph, match=r"Debian 12's packages, and this is Ubuntu 24\.04 LTS"):
        ceph.Ceph(tmp_path)


@pytest.mark.slow
def test_failed_start_shows_the_logs_and_leaves_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ceph, "CONFIGURATION", ceph.CONFIGURATION.replace("beast endpoint", "beast nonsense"))
    with pytest.raises(RuntimeError, match=r"radosgw.* ended with") as failed, ceph.Ceph(tmp_path):
        pass
    notes = "".join(failed.value.__notes__)
    assert "ceph-mon.log" in notes
    assert "radosgw.log" in notes  # its end: why it refuses the line, or what it dumps if it crashes after that
    assert not list(find(lambda pid: f"CEPH_CONF={tmp_path}/ceph.conf" in environment(pid)))
