"""The Delta sources of a query: whether the table still has the commits and files that it reads next. Runs in the Spark driver.

A table forgets commits that are older than its ``logRetentionDuration``, and VACUUM deletes files that it does not hold any more. Spark
notices that only when the batch runs. By then the sink of a query that goes back has already lost its rows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from airflow_checkpoint_provider.location.files import NOTHING
from airflow_checkpoint_provider.protocol.query_details import DELTA
from airflow_checkpoint_provider.protocol.wording import keeping
from airflow_checkpoint_provider.spark.queries.sinks.delta_table import DeltaOffset, DeltaTable
from airflow_checkpoint_provider.spark.queries.sources.file_sources import IGNORED_CONF, ignores_missing
from airflow_checkpoint_provider.spark.queries.sources.reading import NEWER, Loss, Reading
from airflow_checkpoint_provider.spark.queries.sources.source_paths import AT_MOST, SourcePaths, shown
from airflow_checkpoint_provider.spark.queries.sources.sources import Leaf
from airflow_checkpoint_provider.text.units import fitting, plural

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOSS_ALLOWED = "failOnDataLoss"
CHANGES = ("readchangefeed", "readchangedata")  # options with which it reads other files than those of the table


class DeltaSources:
    """The sources of a query that read Delta tables. ``written`` are the tables to which other queries of the job
    write their rows again."""

    def __init__(self, spark: SparkSession, uid: str, leaves: Sequence[Leaf], written: Collection[str | None]) -> None:
        self._spark, self._uid, self._written = spark, uid, written
        self._paths = SourcePaths(spark, uid)
        self._leaves = [leaf for leaf in leaves if leaf.format == DELTA and "path" in leaf.options]
        self.not_asked: list[str] = []
        """The files and change feeds that the last call of ``losses`` did not check."""

    def losses(self, reading: Reading) -> Iterator[Loss]:
        """Yield what the tables lack. Raises ``SourceUnavailable`` and ``Damaged``."""
        self.not_asked = []
        for leaf in self._leaves:
            table = DeltaTable(self._spark, leaf.options["path"])
            if reading.restored and table.folder in self._written:
                continue  # queries that go back together begin elsewhere in the table
            begin = reading.begins(leaf.offset)
            begins = None if begin is None else DeltaOffset.parse(begin)
            ends = [DeltaOffset.parse(offset) for offset in reading.ends(leaf.offset)]
            if begins or ends:
                yield from self._of_table(leaf, table, begins, ends, reading)

    def _of_table(
        self, leaf: Leaf, table: DeltaTable, begins: DeltaOffset | None, ends: Sequence[DeltaOffset], reading: Reading
    ) -> Iterator[Loss]:
        where, newer = f"its table {shown(table.folder)}", NEWER if reading.left else ""
        anew = f"Start the query under another uid, with {keeping([self._uid])}"
        first = begins or min(ends, key=lambda end: end.version)
        if table.version == NOTHING or table.id != first.table:
            yield Loss(where, ["it was deleted or made anew"], f"{newer} {anew}")
            return
        if gap := self._gap(table, first):
            remedy = f'{newer} To continue without these rows, set .option("{LOSS_ALLOWED}", "false") on the source'
            allowed = leaf.options.get(LOSS_ALLOWED.lower(), "true").lower() == "false"
            yield Loss(where, [gap], remedy, f"{LOSS_ALLOWED}=false" if allowed else "")
            return
        files = self._files(leaf, table, begins, ends) if reading.again else []
        gone = [shown(path) for path, changed in self._paths.changed(files) if changed is None]
        if gone:
            remedy = f"{newer} To continue without their rows, set the conf {IGNORED_CONF}=true"
            counted = f"{len(gone)} of the {plural(len(files), 'file')} that it reads again {fitting(len(gone), 'were')} deleted: "
            yield Loss(where, gone, remedy, ignores_missing(self._spark, {}), counted)

    def _gap(self, table: DeltaTable, first: DeltaOffset) -> str:
        """Return which commits the log of a table lacks; empty if it has all commits that the source reads next."""
        if first.initial and table.files_gone(first.version) is None:
            return f"its log does not say any more what it held at version {first.version}, which the query reads"
        needed = first.version + 1 if first.initial else first.version
        if needed > table.version:
            return ""
        logged = table.first_logged(needed)
        if logged == needed:
            return ""
        begins = "no commit there" if logged is None else f"version {logged}"
        return f"its log begins with {begins}, and the query reads on at version {needed}"

    def _files(
        self, leaf: Leaf, table: DeltaTable, begins: DeltaOffset | None, ends: Sequence[DeltaOffset]
    ) -> list[str]:
        """Return the files that the query reads again, in commits up to the one that it has read."""
        if any(leaf.options.get(name, "").lower() == "true" for name in CHANGES):
            self.not_asked.append(f"the change feed of {shown(table.folder)}")
            return []
        snapshots = {read.version for read in (begins, *ends) if read and read.initial}
        first = begins.version if begins and not begins.initial else min(snapshots, default=NOTHING) + 1
        last = max((end.touched - 1 for end in ends if not end.initial), default=NOTHING)
        names = [name for version in snapshots for name in table.files_gone(version) or ()]
        names += [file.name for commit in table.commits(first, last) for file in commit.files]
        if len(names) > AT_MOST:
            self.not_asked.append(f"{len(names) - AT_MOST} of {len(names)} files of {shown(table.folder)}")
        return list(dict.fromkeys(table.uri(name) for name in islice(names, AT_MOST)))
