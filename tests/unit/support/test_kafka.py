"""Kafka for the tests of queries: refused without Maven, and no process outlives it. Runs on Linux."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import jars, kafka
from tests.support.processes import command, find


def test_machine_without_maven_is_refused_with_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jars, "ROOT", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(jars.NoJars, match="fetched by Maven, and there is no mvn"):
        kafka.Kafka(tmp_path)


@pytest.mark.slow
def test_failed_start_shows_the_log_and_leaves_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka, "CONFIGURATION", f"{kafka.CONFIGURATION}\nauthorizer.class.name=no.such.Authorizer\n")
    with pytest.raises(RuntimeError, match=r"Kafka's .* ended with") as failed, kafka.Kafka(tmp_path):
        pass
    assert "no.such.Authorizer" in "".join(failed.value.__notes__)
    assert not list(find(lambda pid: str(tmp_path / "server.properties") in command(pid)))
