"""The bugs that the log of a target exists for. Each is switched on for a test. Run anywhere."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pytest

from airflow_checkpoint_provider.sinks import published_files
from airflow_checkpoint_provider.sinks.log import CommitLog, Contents
from airflow_checkpoint_provider.sinks.published_files import PublishedFiles

Patch = pytest.MonkeyPatch


def commits_though_it_was_aborted(patch: Patch) -> None:
    """A commit looks only for an earlier commit, not for an abort."""
    entry_of = CommitLog.entry_of

    def commits_alone(log: CommitLog, name: str, base: int) -> Any:
        found = entry_of(log, name, base)
        return found if found and found[1].kind == "commit" else None

    patch.setattr(CommitLog, "entry_of", commits_alone)


def overwrites_whatever_came_since(patch: Patch) -> None:
    """An overwrite does not ask which run began later."""
    after = Contents.after

    def forgets(contents: Contents, entry: Any) -> Contents:
        return replace(after(contents, entry), overwritten_by=0)

    patch.setattr(Contents, "after", forgets)


def next_entry_does_not_end_the_one_before(patch: Patch) -> None:
    """A writer puts the next entry though the files of the newest one have not appeared yet."""
    commit_of = PublishedFiles._commit_of

    def hurried(files: PublishedFiles, *args: Any) -> Any:
        end, files._end_publication = files._end_publication, lambda number: None  # type: ignore[method-assign]
        try:
            return commit_of(files, *args)
        finally:
            files._end_publication = end  # type: ignore[method-assign]

    patch.setattr(PublishedFiles, "_commit_of", hurried)


def staged_rows_stay(patch: Patch) -> None:
    """The staged rows of a transaction that is over are left where they are."""
    patch.setattr(PublishedFiles, "_delete_staged", lambda files, names: None)


def removes_what_it_finds(patch: Patch) -> None:
    """An overwrite takes out the files that it finds, not those that its entry names."""
    end = PublishedFiles._end_publication

    def clean(files: PublishedFiles, number: int) -> None:
        end(files, number)
        if number:
            entry = dict(files.log.since(number - 1))[number]
            kept = {file.name for file in entry.added}
            if entry.overwrite:
                found = (found.key for found in files.store.list("") if not published_files.is_hidden(found.key))
                files.store.delete([name for name in found if name not in kept])

    patch.setattr(PublishedFiles, "_end_publication", clean)


def names_of_files_are_used_twice(patch: Patch) -> None:
    """The name of a published file does not hold its transaction."""
    patch.setattr(published_files, "published_name", lambda transaction, staged: staged)


def abort_is_no_entry(patch: Patch) -> None:
    """An abort deletes what is staged, and leaves no entry for a process that wakes up."""

    def delete(files: PublishedFiles, names: Iterable[str], base: int) -> tuple[str, ...]:
        files.log.read()
        committed = [name for name in names if files.log.entry_of(name, base)]
        files._delete_staged(name for name in names if name not in committed)
        return tuple(committed)

    patch.setattr(PublishedFiles, "abort", delete)


BUGS: list[Callable[[Patch], None]] = [
    commits_though_it_was_aborted,
    overwrites_whatever_came_since,
    next_entry_does_not_end_the_one_before,
    staged_rows_stay,
    removes_what_it_finds,
    names_of_files_are_used_twice,
    abort_is_no_entry,
]
