"""The digest of the program, and the refusals of mixed versions of Spark."""

from __future__ import annotations

import functools
import json
import sys
import threading
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import spec_from_file_location
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.connect.session import SparkSession as ConnectSession

from airflow_checkpoint_provider.errors import VersionMismatch, WrongUse
from airflow_checkpoint_provider.spark import versions
from airflow_checkpoint_provider.spark.stages.application import Application, digest, refuse_connect
from airflow_checkpoint_provider.spark.stages.installed import modules_in
from airflow_checkpoint_provider.spark.versions import check_versions
from tests.support.drivers import started, submit


def files(found: Application) -> set[str]:
    return {name for name in found.parts if not name.startswith("the ")}


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "jobs" / "delays.py"
    sources = {
        "delays.py": "def f():\n    import helpers.dates\n",
        "helpers/dates.py": "one = 1\n",
        "other.py": "one = 1\n",
    }
    for name, text in sources.items():
        file = path.parent / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return path


def test_digest_is_the_same_until_something_changes(spark: SparkSession, script: Path) -> None:
    first = digest(spark, script, ["--day", "2026-11-20"])
    assert digest(spark, script, ["--day", "2026-11-20"]) == first
    assert (files(first), first.note) == ({"helpers/dates.py"}, None)

    seen = {first.digest, digest(spark, script, ["--day", "2026-11-21"]).digest}
    for name, text in {"helpers/dates.py": "two = 2\n", "delays.py": "import helpers.dates as dates\n"}.items():
        (script.parent / name).write_text(text)
        seen.add(digest(spark, script, ["--day", "2026-11-20"]).digest)
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    try:
        seen.add(digest(spark, script, ["--day", "2026-11-20"]).digest)
    finally:
        spark.conf.unset("spark.sql.session.timeZone")
    assert len(seen) == 5


def test_script_beside_the_jobs_own_does_not_count(spark: SparkSession, script: Path) -> None:
    first = digest(spark, script, [])
    (script.parent / "other.py").write_text("two = 2\n")
    (script.parent / "new.py").write_text("two = 2\n")
    assert digest(spark, script, []) == first


def test_computed_import_makes_all_modules_beside_the_script_count(spark: SparkSession, script: Path) -> None:
    (script.parent / "helpers/dates.py").write_text("import importlib\n")
    first = digest(spark, script, [])
    assert files(first) == {"helpers/dates.py", "other.py"}
    assert first.note is not None
    assert "(importlib in helpers/dates.py)" in first.note
    (script.parent / "other.py").write_text("two = 2\n")
    assert digest(spark, script, []).digest != first.digest


def test_application_of_many_files_keeps_no_parts_for_the_journal() -> None:
    parts = {f"m{number}.py": b"" for number in range(101)}
    assert Application.of(parts).stored_parts == {}
    del parts["m0.py"]
    assert set(Application.of(parts).stored_parts) == set(parts)


def test_digest_does_not_depend_on_the_folder(spark: SparkSession, script: Path) -> None:
    first = digest(spark, script, [])
    script.parent.rename(script.parent.with_name("bundle-4f1c"))
    assert digest(spark, script.parent.with_name("bundle-4f1c") / "delays.py", []) == first


@pytest.mark.parametrize("name", [".venv/x.py", "__pycache__/x.py", "lib/site-packages/x.py", "notes.txt", "gone.py"])
def test_digest_leaves_out_files_that_are_no_modules(spark: SparkSession, script: Path, name: str) -> None:
    script.write_text("exec('')")  # a computed import: all modules beside the script count
    first = digest(spark, script, [])
    file = script.parent / name
    file.parent.mkdir(parents=True, exist_ok=True)
    if name == "gone.py":
        file.symlink_to("nowhere.py")
    else:
        file.write_text("x")
    assert digest(spark, script, []) == first


def test_script_among_thousands_of_files_counts_alone_with_a_note(spark: SparkSession, script: Path) -> None:
    script.write_text("import helpers.dates\nexec('')")
    for number in range(2_001):
        (script.parent / f"m{number}.py").touch()
    found = digest(spark, script, [])
    assert files(found) == {"helpers/dates.py"}
    assert found.note is not None
    assert "more than 2000 Python files" in found.note


# -- modules elsewhere -----------------------------------------------------------------------------------------------


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of Python's path, as PYTHONPATH or a .pth file names it."""
    folder = tmp_path / "shared"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    return folder


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("import shop_rules", "shop_rules.py"),
        ("def f(x):\n    from shop_rules.fees import fee", "shop_rules/fees.py"),  # of a namespace package, in a UDF
        ("import shop_rules.fees", "shop_rules/__init__.py"),
    ],
)
def test_module_elsewhere_on_pythons_path_counts(
    spark: SparkSession, script: Path, elsewhere: Path, line: str, name: str
) -> None:
    script.write_text(line)
    seen = {digest(spark, script, []).digest}
    for text in ("fee = 2\n", "fee = 2002\n"):
        write(elsewhere / name, text)
        found = digest(spark, script, [])
        assert name in files(found)
        seen.add(found.digest)
    assert len(seen) == 3


def test_module_in_an_archive_on_pythons_path_counts(
    spark: SparkSession, script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with zipfile.ZipFile(tmp_path / "shared.zip", "w") as archive:
        archive.writestr("packed_rules/__init__.py", "fee = 2")
    monkeypatch.syspath_prepend(str(tmp_path / "shared.zip"))
    script.write_text("import packed_rules")
    assert files(digest(spark, script, [])) == {"packed_rules/__init__.py"}


def test_module_of_an_editable_installation_counts(
    spark: SparkSession, script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Setuptools installs a finder: no folder of Python's path holds the module."""
    write(tmp_path / "repository" / "python" / "edited.py", "fee = 2")

    class Finder:
        @staticmethod
        def find_spec(name: str, *_: object) -> object:
            place = tmp_path / "repository" / "python" / "edited.py"
            return spec_from_file_location(name, place) if name == "edited" else None

    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Finder])
    script.write_text("import edited")
    assert files(digest(spark, script, [])) == {"edited.py"}


def test_module_where_only_executors_look_counts(spark: SparkSession, script: Path, tmp_path: Path) -> None:
    write(tmp_path / "there" / "far_rules.py", "fee = 2")
    script.write_text("def f(x):\n    import far_rules")
    spark.sparkContext._conf.set("spark.executorEnv.PYTHONPATH", f"{tmp_path}/nowhere:{tmp_path}/there")
    try:
        assert files(digest(spark, script, [])) == {"far_rules.py"}
    finally:
        forget(spark, "spark.executorEnv.PYTHONPATH")


def test_installed_module_does_not_count(spark: SparkSession, script: Path, elsewhere: Path) -> None:
    write(elsewhere / "site-packages" / "installed.py", "")
    write(elsewhere / "targeted.py", "")
    write(elsewhere / "targeted-1.0.dist-info" / "RECORD", "")  # as `pip install --target` leaves it
    script.write_text(
        "import json, pandas, py4j.java_gateway, targeted, pyspark.sql, airflow_checkpoint_provider.spark"
    )
    assert files(digest(spark, script, [])) == set()


def test_modules_elsewhere_are_named_if_an_import_is_computed(
    spark: SparkSession, script: Path, elsewhere: Path
) -> None:
    assert digest(spark, script, []).not_compared == ()
    script.write_text("import importlib")
    assert f"modules below {elsewhere}" in digest(spark, script, []).not_compared


@pytest.mark.parametrize("inside", ["", "lib/"])
@pytest.mark.parametrize("script_text", ["import importlib", "exec('')"])
def test_modules_of_an_archive_on_pythons_path_count_if_an_import_is_computed(
    spark: SparkSession, script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inside: str, script_text: str
) -> None:
    script.write_text(script_text)
    archives = [tmp_path / folder / "shared.zip" for folder in ("one", "two")]

    def pack(archive: Path, body: str) -> None:
        archive.parent.mkdir(exist_ok=True)
        with zipfile.ZipFile(archive, "w") as packed:
            packed.writestr(f"{inside}rules.py", body)
            packed.writestr("data.csv", body)

    seen = set()
    for archive in archives:
        pack(archive, "fee = 1")
        monkeypatch.syspath_prepend(f"{archive}/{inside}")
    for archive, body in ((archives[0], "fee = 1"), (archives[0], "fee = 2"), (archives[1], "fee = 3")):
        pack(archive, body)
        found = digest(spark, script, [])
        assert f"shared.zip/{inside}rules.py" in files(found)
        assert not any("shared.zip" in name or "pyspark" in name for name in found.not_compared)
        seen.add(found.digest)
    assert len(seen) == 3
    assert not any("pyspark" in name for name in files(found))


# -- jars --------------------------------------------------------------------------------------------------------------


def forget(spark: SparkSession, name: str) -> None:
    spark.sparkContext._conf._jconf.remove(name)  # type: ignore[union-attr]


def jar(path: Path, content: str, day: int = 1) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(zipfile.ZipInfo("Fees.class", (2026, 1, day, 0, 0, 0)), content)
    return path


@pytest.fixture
def conf(spark: SparkSession) -> Iterator[Callable[[str, object], None]]:
    names = []

    def give(name: str, value: object) -> None:
        names.append(name)
        spark.sparkContext._conf.set(name, str(value))

    yield give
    for name in set(names):
        forget(spark, name)


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("spark.jars", "{folder}/rules.jar"),
        ("spark.jars", "file://{folder}/rules.jar"),
        ("spark.jars", "local:{folder}/rules.jar"),
        ("spark.driver.extraClassPath", "/nowhere:{folder}/rules.jar"),
        ("spark.executor.extraClassPath", "{folder}/*"),
    ],
)
def test_content_of_a_jar_counts(
    spark: SparkSession, script: Path, tmp_path: Path, conf: Callable[[str, object], None], name: str, given: str
) -> None:
    without = digest(spark, script, []).digest
    path = jar(tmp_path / "rules.jar", "fee = 2")
    conf(name, given.format(folder=tmp_path))
    first = digest(spark, script, [])
    jar(path, "fee = 2", day=2)
    assert digest(spark, script, []).digest == first.digest, "packed again"
    jar(path, "fee = 2002")
    assert len({without, first.digest, digest(spark, script, []).digest}) == 3
    assert first.not_compared == ()


def test_class_of_a_folder_counts(
    spark: SparkSession, script: Path, tmp_path: Path, conf: Callable[[str, object], None]
) -> None:
    write(tmp_path / "classes" / "shop" / "Fees.class", "2")
    conf("spark.driver.extraClassPath", f"{tmp_path}/classes:/nowhere")
    first = digest(spark, script, []).digest
    write(tmp_path / "classes" / "shop" / "Fees.class", "2002")
    assert digest(spark, script, []).digest != first


def test_jar_that_cannot_be_read_here_is_named(
    spark: SparkSession, script: Path, conf: Callable[[str, object], None]
) -> None:
    conf("spark.jars", "s3a://key:secret@lake/jars/rules.jar,/nowhere/lost.jar")
    conf("spark.jars.packages", "org.shop:rules:1.0")
    found = digest(spark, script, [])
    assert found.not_compared == ("the jar rules.jar", "the jar lost.jar")
    conf("spark.jars.packages", "org.shop:rules:1.1")
    assert digest(spark, script, []).digest != found.digest


DIGESTS = """
import json, os, sys, zipfile
from pathlib import Path
from pyspark.sql import SparkSession
from airflow_checkpoint_provider.spark.stages.application import digest
from airflow_checkpoint_provider.spark.stages.jars import added_jars

def f():
    import lib.a, loose

spark = SparkSession.builder.getOrCreate()
library, ours, loose, added = (Path(path) for path in sys.argv[1:])

def pack(path, content):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(zipfile.ZipInfo("lib/a.py", (2026, 1, 1 + pack.days, 0, 0, 0)), content)
    pack.days += 1
pack.days = 0

def now():
    found = digest(spark, Path(__file__), [])
    return [found.digest, sorted(name for name in found.parts if not name.startswith("the "))]

said = {"first": now()}
pack(library, "a = 1"); said["packed again"] = now()
pack(ours, "other"); said["our archive"] = now()
pack(library, "a = 2"); said["library"] = now()
loose.write_text("b = 2"); said["loose file"] = now()
said["not compared"] = [*digest(spark, Path(__file__), []).not_compared]
spark.sql(f"ADD JAR '{added}'")
said["added"] = added_jars(spark)
print("SAID", json.dumps(said), flush=True)
"""


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """A server of the folder's files: its address."""
    handler = functools.partial(SimpleHTTPRequestHandler, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()


def test_digest_covers_the_content_of_py_files_except_our_archive(tmp_path: Path) -> None:
    script = tmp_path / "job" / "main.py"
    script.parent.mkdir()
    script.write_text(DIGESTS)
    given = [tmp_path / name for name in ("lib.zip", "airflow_checkpoint_provider-0.1.0.zip", "loose.py")]
    for path in given[:2]:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("lib/a.py", "a = 1")
    given[2].write_text("b = 1")
    jar(tmp_path / "rules.jar", "fee = 2")
    added = jar(tmp_path / "added.jar", "fee = 2")
    with served(tmp_path) as address:
        confs = {"spark.submit.pyFiles": ",".join(map(str, given)), "spark.jars": f"{address}/rules.jar"}
        command = submit(tmp_path, script, *map(str, [*given, added]), **confs)
        with started(command, tmp_path / "log") as driver:
            assert driver.wait(300) == 0, (tmp_path / "log").read_text()
    said = json.loads((tmp_path / "log").read_text().partition("SAID ")[2].splitlines()[0])
    assert said["first"] == said["packed again"] == said["our archive"]
    assert said["first"][1] == ["lib.zip/lib/a.py", "loose.py", "rules.jar"]
    assert said["not compared"] == [], "Spark has fetched the jar"
    assert said["added"] == ["the jar added.jar"]
    assert len({said[when][0] for when in ("first", "library", "loose file")}) == 3


def test_check_versions_accepts_this_installation(spark: SparkSession) -> None:
    check_versions(spark)


def test_different_versions_of_spark_are_named(spark: SparkSession) -> None:
    seen = versions._versions(spark)
    assert set(seen) >= {"the JVM", "pyspark as imported", "pyspark as installed"}
    versions._refuse_mixed({**seen, "a build of somebody's": f"{spark.version}-amzn-1"})
    with pytest.raises(VersionMismatch, match=r"pyspark-client as installed 4\.0\.4\. .*") as refused:
        versions._refuse_mixed({**seen, "pyspark-client as installed": "4.0.4"})
    assert 'pip install --force-reinstall --no-deps "pyspark==4.0.4" "pyspark-client==4.0.4"' in str(refused.value)
    alone = {label: version for label, version in seen.items() if label != versions.CLIENT}
    with pytest.raises(VersionMismatch, match=r"the JVM 4\.9\.0.*Install the pyspark of the JVM's version"):
        versions._refuse_mixed({**alone, "the JVM": "4.9.0"})


@pytest.mark.parametrize("version", ["3.5.6", "3.5.6-amzn-1"])
def test_spark_before_4_is_refused_in_one_line(version: str) -> None:
    with pytest.raises(VersionMismatch, match=rf"needs Spark 4\.0 or newer, found {version}\. Install"):
        versions._refuse_old(version)


@pytest.mark.parametrize("version", ["4.0.0", "4.1.2", "4.2.0-amzn-1", "4.3.0", "5.0.0-SNAPSHOT"])
def test_spark_4_and_newer_is_accepted(version: str) -> None:
    versions._refuse_old(version)


def test_only_a_newer_minor_release_is_called_untried() -> None:
    assert [version for version in ("4.0.1", "4.3.7", "4.4.0", "5.0.0") if versions.untried(version)] == [
        "4.4.0",
        "5.0.0",
    ]


def test_connect_session_is_refused(spark: SparkSession) -> None:
    refuse_connect(spark)
    remote = ConnectSession(connection="sc://127.0.0.1:1")
    with pytest.raises(WrongUse, match="Spark Connect"):
        refuse_connect(remote)  # type: ignore[arg-type]  # what a user's `SparkSession` may turn out to be


@pytest.mark.parametrize("damage", ["cut", "torn", "encrypted"])
def test_archive_that_cannot_be_read_counts_as_a_whole(tmp_path: Path, damage: str) -> None:
    """Python passes over it."""
    path = tmp_path / "shared.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("packed_rules.py", "fee = 2")
    content = path.read_bytes()
    start = content.index(b"PK\x01\x02")
    damaged = {
        "cut": content[start + 4 :],
        "torn": content[:45] + b"\xff" * 4 + content[49:],
        "encrypted": content[:6] + b"\x01" + content[7 : start + 8] + b"\x01" + content[start + 9 :],
    }[damage]
    path.write_bytes(damaged)
    assert zipfile.is_zipfile(path)
    assert modules_in(path) == {"": damaged}
