"""Tasks that run elsewhere than the driver are tried again; a stage and the sinks hold each row once. Runs on Linux."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests.jobs.unsteady import ROWS
from tests.support.clusters import Cluster, local_cluster, standalone
from tests.support.runs import Home
from tests.support.streams import add_files, expected, expected_keys, rows_in

FILES = 4
SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "200ms",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.minTaskRuntime": "2s",
}


@pytest.fixture(params=[pytest.param(local_cluster, id="local-cluster"), pytest.param(standalone, id="standalone")])
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cluster]:
    start: Callable[[Path], AbstractContextManager[Cluster]] = request.param
    with start(tmp_path) as started:
        yield started


@pytest.mark.parametrize("how", ["raises", "hangs", "dies"])
def test_rows_are_exact_though_tasks_are_tried_again(cluster: Cluster, tmp_path: Path, how: str) -> None:
    home = Home(tmp_path / "home", "unsteady.py")
    home.confs = {**cluster.confs, **(SPECULATION if how == "hangs" else {})}
    home.env |= {"UNSTEADY": how}
    add_files(Path(f"{home.out}-in"), *range(FILES))
    ended = home.run()
    assert ended.code == 0, ended.log
    assert ended.result["rows"] == {"plain": list(range(ROWS)), "shuffled": list(range(ROWS))}
    assert ended.result["tries"].keys() == {"plain", "before", "after", "files", "batches"}
    assert rows_in(home.out / "files") == expected(FILES)
    assert sorted(rows_in(home.out / "batches", "key")) == expected_keys(FILES)
