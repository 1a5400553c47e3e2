"""Tasks that run elsewhere than the driver are tried again; stages and sinks hold each row once. Runs on Linux."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.jobs.unsteady import ROWS, TRIES
from tests.support.clusters import Cluster, local_cluster, standalone, yarn
from tests.support.streams import add_files, expected, expected_keys, rows_in

FILES = 4
SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "200ms",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.minTaskRuntime": "2s",
}
EVERYWHERE = ("plain", "before", "after", "files", "batches")


@pytest.mark.slow  # test_jdbc.py: a task that was tried again has doubled rows
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("cluster", "how", "places"),
    [
        (local_cluster, "dies", EVERYWHERE),
        (local_cluster, "raises", EVERYWHERE),
        (standalone, "raises", EVERYWHERE),
        (standalone, "dies", EVERYWHERE),
        (yarn, "raises", EVERYWHERE),
        (yarn, "dies", EVERYWHERE),
        # Spark speculates on another host only, and the workers of a local cluster share one.
        (standalone, "hangs", EVERYWHERE),
        (standalone, "dies with its node", ("after",)),
    ],
    indirect=["cluster"],
)
def test_rows_are_exact_though_tasks_are_tried_again(
    cluster: Cluster, tmp_path: Path, how: str, places: tuple[str, ...]
) -> None:
    home = cluster.home(tmp_path / "home", "unsteady.py")
    home.confs |= SPECULATION if how == "hangs" else {}
    home.env["UNSTEADY"] = how
    add_files(Path(f"{home.out}-in"), *range(FILES))
    ended = home.run()
    assert ended.code == 0, ended.log
    assert ended.result["rows"] == {"plain": list(range(ROWS)), "shuffled": list(range(ROWS))}
    assert ended.result["tries"] == dict.fromkeys(places, TRIES[how])
    assert rows_in(home.out / "files") == expected(FILES)
    assert rows_in(home.out / "batches", "key") == expected_keys(FILES)
