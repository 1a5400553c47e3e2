"""A real ``spark-submit`` by the hook: what the driver gets of the confs of the user, beside what the hook adds."""

from __future__ import annotations

import json
import os
import zipfile
from pathlib import Path

import pytest
from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
from airflow.sdk.exceptions import AirflowException

from airflow_checkpoint_provider.hooks.archive import driver_archive
from airflow_checkpoint_provider.hooks.spark_confs import submitted_confs
from airflow_checkpoint_provider.hooks.spark_submit import CheckpointedSparkSubmitHook

SCRIPT = """
import json, pathlib, sys
import zipimport
import of_the_conf
from pyspark.java_gateway import launch_gateway
properties = launch_gateway().jvm.java.lang.System.getProperties()
here = [path for path in sys.path if "airflow_checkpoint_provider-" in path]
runtime = zipimport.zipimporter(here[0]).find_spec("airflow_checkpoint_provider").origin
confs = {name: properties[name] for name in properties if name.startswith("spark.test.")}
pathlib.Path(sys.argv[1]).write_text(json.dumps({"module": of_the_conf.NAME, "runtime": runtime, "confs": confs}))
"""
JAVA = r"""
# of the team \
spark.submit.pyFiles = \
    {folder}/theirs.zip
spark.test.colon : a=b:c \
   d
! spark.test.none 1
spark.test.a\:b\ c	C\:\\temp\u00e4
spark.test.odd=\\\\
spark.test.zoë=1
spark.test.last=x \
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", '{"conn_type": "spark", "host": "local[1]"}')
    (tmp_path / "driver.py").write_text(SCRIPT)
    with zipfile.ZipFile(tmp_path / "theirs.zip", "w") as archive:
        archive.writestr("of_the_conf.py", 'NAME = "theirs"')
    (tmp_path / "spark-defaults.conf").write_text(JAVA.format(folder=tmp_path))
    return tmp_path


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "where",
    [
        pytest.param("conf", marks=pytest.mark.slow),  # test_command_line.py of the operators has it for a conf, too
        "defaults",
    ],
)
def test_driver_imports_the_modules_of_a_conf_and_the_runtime(
    folder: Path, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the confs of a file are those that Spark has read."""
    if where == "defaults":
        monkeypatch.setenv("SPARK_CONF_DIR", str(folder))
    conf = {"spark.submit.pyFiles": str(folder / "theirs.zip")} if where == "conf" else {}
    hook = CheckpointedSparkSubmitHook(
        conf=conf, archive=str(driver_archive()), application_args=[str(folder / "seen")]
    )
    hook.submit(str(folder / "driver.py"))
    seen = json.loads((folder / "seen").read_text())
    assert seen["module"] == "theirs"
    assert seen["runtime"].startswith(str(driver_archive()))
    read = submitted_confs({}, None, os.environ)
    assert seen["confs"] == {name: value for name, value in read.items() if name.startswith("spark.test.")}
    assert len(read) == (0 if where == "conf" else 6)


@pytest.mark.timeout(120)
def test_cluster_mode_is_where_spark_submit_sees_it(folder: Path) -> None:
    """It refuses cluster mode on a local master, so its error says what it understood."""
    (folder / "my.conf").write_text("spark.submit.deployMode \\\n  cluster  ")
    file = str(folder / "my.conf")
    with pytest.raises(AirflowException, match="Cluster deploy mode is not compatible with master"):
        SparkSubmitHook(properties_file=file).submit(str(folder / "driver.py"))
    assert CheckpointedSparkSubmitHook(properties_file=file).deploy_mode == "cluster"
