"""The file sources of a query: whether the files that it reads again are still there. Runs in the Spark driver.

If the log names a file that is not there, Spark reads it as an empty file, whatever ``ignoreMissingFiles`` says. And a query that goes back
lists the folder to find the files that it reads again. So without this module, rows would be missing without an error.

Spark counts the sources of a query, and does not compare their paths with their logs. If two change places, each takes all its files for new.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from airflow_checkpoint_provider.errors import Damaged, WrongUse
from airflow_checkpoint_provider.location.files import NOTHING
from airflow_checkpoint_provider.location.source_files import SourceFile, logged_files, newest_path
from airflow_checkpoint_provider.spark.queries.sinks.sink_log import spelled
from airflow_checkpoint_provider.spark.queries.sources.reading import NEWER, Loss, Reading
from airflow_checkpoint_provider.spark.queries.sources.source_paths import AT_MOST, Below, SourcePaths, shown
from airflow_checkpoint_provider.spark.queries.sources.sources import FILES, Leaf
from airflow_checkpoint_provider.text.units import fitting, plural

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

IGNORED = "ignoreMissingFiles"
IGNORED_CONF = f"spark.sql.files.{IGNORED}"
NAME_ONLY = "filenameonly"  # with this option, Spark knows files by their names alone
SAME = 1_000  # milliseconds: a store may tell the time of a file in whole seconds


class FileSources:
    """The sources of a query that read files. ``written`` are the paths to which other queries of the job write their
    rows again."""

    def __init__(self, spark: SparkSession, uid: str, leaves: Sequence[Leaf], written: Collection[str | None]) -> None:
        self._spark, self._uid, self._paths = spark, uid, SourcePaths(spark, uid)
        self._folders: dict[int, list[Leaf]] = {}
        for leaf in leaves:
            if leaf.format == FILES:
                self._folders.setdefault(leaf.folder, []).append(leaf)
        self._own = {
            folder for folder, read in self._folders.items() if spelled(spark, read[0].options["path"]) in written
        }
        self.replaced: list[str] = []
        """Files that the last call of ``losses`` found changed since the query had read them."""
        self.not_asked: list[str] = []
        """The files that the last call of ``losses`` did not check."""
        self.moved: list[tuple[str, str]] = []
        """The paths of sources that have read files elsewhere, and the newest of these files, as the last call of ``losses`` found them."""

    def losses(self, reading: Reading) -> Iterator[Loss]:
        """Yield the missing files that the query reads again. Raises ``SourceUnavailable``, and ``Damaged`` also for a file that lies
        elsewhere: Spark would read each file that the log of a begun batch names. Raises ``WrongUse`` for sources that have changed places.
        """
        self.replaced, self.not_asked, self.moved = [], [], []
        for folder, read in self._folders.items():
            self._refuse_elsewhere(reading, folder, read)
            self._compare_path(reading, folder, read)
            # If queries go back together, the query that wrote the files writes them again
            if reading.again and not (reading.restored and folder in self._own):
                gone = self._gone(folder, self._wanted(reading, folder, read))
                if gone:
                    yield self._loss(read[0], gone, reading)

    def _refuse_elsewhere(self, reading: Reading, folder: int, read: Sequence[Leaf]) -> None:
        """Raise ``Damaged`` if the query would read a file outside of the path of its source."""
        after = _read_up_to(reading, read)
        if not (reading.again or reading.restored or (after == NOTHING and reading.position.begun != NOTHING)):
            return  # the location was copied only up to the entries that its sources have read
        below = self._below(read[0])
        for path in logged_files(reading.own, folder, after):
            if not below.holds(path):
                raise Damaged(
                    f"query '{self._uid}': the log {reading.own.key_of(f'sources/{folder}')} names {shown(path)} for its next batch, which does not"
                    f" lie below its source {shown(read[0].options['path'])}. The query was not started. If the script names another path than"
                    " before, name the old one; else somebody changed the log. Start another job_id with restore=<pointer> of a checkpoint"
                )

    def _compare_path(self, reading: Reading, folder: int, read: Sequence[Leaf]) -> None:
        """Raise ``WrongUse`` if a source has read the files of another one. Note a path where it has read none."""
        newest = None if _read_up_to(reading, read) == NOTHING else newest_path(reading.own, folder)
        if newest is None or self._below(read[0]).holds(newest):
            return
        path = shown(read[0].options["path"])
        for other, (leaf, *_) in self._folders.items():
            if other != folder and self._below(leaf).holds(newest):
                raise WrongUse(
                    f"query '{self._uid}': its source {path} has read {shown(newest)}, which lies below another of its sources,"
                    f" {shown(leaf.options['path'])}. Spark counts the sources of a query, and would read all their files again. The query was"
                    " not started. Write the sources in the same order as before"
                )
        if read[0].options.get(NAME_ONLY, "").lower() != "true":
            self.moved.append((path, shown(newest)))

    def _below(self, leaf: Leaf) -> Below:
        return Below(self._spark, spelled(self._spark, leaf.options["path"]))

    def _wanted(self, reading: Reading, folder: int, read: Sequence[Leaf]) -> list[SourceFile]:
        """Return the files that the query reads again: those of the batch that had begun, and of the batches that it has left."""
        wanted = logged_files(reading.own, folder, _read_up_to(reading, read))
        if reading.left:
            known = logged_files(reading.own, folder)
            for place_left in reading.left:
                left = logged_files(place_left, folder)
                wanted |= {path: file for path, file in left.items() if path not in known}
        return list(wanted.values())

    def _gone(self, folder: int, wanted: Sequence[SourceFile]) -> tuple[int, list[str]] | None:
        """Return the number of files that were asked for, and the missing ones; None if all are there."""
        if len(wanted) > AT_MOST:
            self.not_asked.append(f"{len(wanted) - AT_MOST} of {len(wanted)} files")
        asked = {file.path: file.changed_ms for file in wanted[:AT_MOST]}
        found = list(self._paths.changed(list(asked)))
        if folder not in self._own:
            changed = (path for path, now in found if now is not None and abs(now - asked[path]) >= SAME)
            self.replaced += [shown(path) for path in changed]
        gone = [shown(path) for path, now in found if now is None]
        return (len(asked), gone) if gone else None

    def _loss(self, leaf: Leaf, gone: tuple[int, list[str]], reading: Reading) -> Loss:
        asked, missing = gone
        newer = NEWER if reading.left else ""
        return Loss(
            f"its source {shown(leaf.options['path'])}",
            missing,
            f"{newer}{_cleaned(leaf.options)} Put the files back, and start the job again. To continue without their rows, set"
            f' .option("{IGNORED}", "true") on the source',
            ignores_missing(self._spark, leaf.options),
            f"{len(missing)} of the {plural(asked, 'file')} that it reads again {fitting(len(missing), 'are')} gone: ",
        )


def _read_up_to(reading: Reading, read: Sequence[Leaf]) -> int:
    """Return the newest entry of a source's log that the committed batch has read in all places of the query; -1 if there is none."""
    if reading.position.committed == NOTHING:
        return NOTHING
    offsets = reading.own.offsets(reading.position.committed)
    return min(NOTHING if (entry := offsets.newest_log_entry(leaf.offset)) is None else entry for leaf in read)


def ignores_missing(spark: SparkSession, options: Mapping[str, str]) -> str:
    """Return the option by which the author accepts that files are missing; empty if there is none."""
    if (own := options.get(IGNORED.lower())) is not None:
        return f"{IGNORED}=true" if own.lower() == "true" else ""
    return f"{IGNORED_CONF}=true" if str(spark.conf.get(IGNORED_CONF, "false")).lower() == "true" else ""


def _cleaned(options: Mapping[str, str]) -> str:
    """Say where the source itself puts files that it has read."""
    clean = options.get("cleansource", "").lower()
    if clean == "archive":
        return f" The source has cleanSource=archive: files that were read are below {shown(options.get('sourcearchivedir', ''))}."
    return " The source has cleanSource=delete, which deletes the files that were read." if clean == "delete" else ""
