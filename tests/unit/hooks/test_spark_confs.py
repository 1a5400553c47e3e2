"""Which confs spark-submit has besides its options, and how a file of properties is read."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_checkpoint_provider.hooks.spark_confs import submitted_confs

JAVA = r"""
# a comment \
spark.a  1
   ! another
spark.b=2
spark.c : 3
spark.d= a=b:c d
spark.e = one,\
          two,\

spark.f\:x = C\:\\temp\tn\u00e4me
spark.g
spark.h=odd\\
spark.i	by a tab
spark.j=last \
"""
READ = {
    "spark.a": "1",
    "spark.b": "2",
    "spark.c": "3",
    "spark.d": "a=b:c d",
    "spark.e": "one,two,",
    "spark.f:x": "C:\\temp\tnäme",
    "spark.g": "",
    "spark.h": "odd\\",
    "spark.i": "by a tab",
    "spark.j": "last",
}


@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\r"])
def test_file_of_properties_is_read_as_java_reads_it(tmp_path: Path, line_end: str) -> None:
    file = tmp_path / "my.conf"
    file.write_bytes(JAVA.replace("\n", line_end).encode())
    assert submitted_confs({}, str(file), {}) == READ


def defaults(folder: Path, text: str) -> str:
    folder.mkdir(parents=True)
    (folder / "spark-defaults.conf").write_text(text)
    return str(folder)


def test_conf_of_the_task_wins_over_the_file_and_the_file_replaces_the_defaults(tmp_path: Path) -> None:
    installed = {"SPARK_CONF_DIR": defaults(tmp_path / "conf", "spark.a 1\nspark.c 1\n")}
    file = tmp_path / "my.conf"
    file.write_text("spark.a 2\nspark.b 2\n")
    assert submitted_confs({"spark.a": 3}, str(file), installed) == {"spark.a": "3", "spark.b": "2"}
    assert submitted_confs({"spark.a": 3}, None, installed) == {"spark.a": "3", "spark.c": "1"}


def test_folder_of_confs_wins_over_the_one_of_the_installation(tmp_path: Path) -> None:
    home = tmp_path / "spark"
    defaults(home / "conf", "spark.a home")
    environment = {"SPARK_HOME": str(home)}
    assert submitted_confs({}, None, environment) == {"spark.a": "home"}
    environment["SPARK_CONF_DIR"] = defaults(tmp_path / "conf", "spark.a conf")
    assert submitted_confs({}, None, environment) == {"spark.a": "conf"}


def test_file_that_is_not_there_has_no_confs(tmp_path: Path) -> None:
    """spark-submit says so itself."""
    assert submitted_confs({}, str(tmp_path / "no.conf"), {}) == {}
    assert submitted_confs({}, str(tmp_path), {"SPARK_HOME": "/nowhere"}) == {}
    assert submitted_confs({}, None, {"SPARK_HOME": "/nowhere"}) == {}
