"""Streaming queries that leave this package again, and go on exactly. Runs on Linux."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from airflow_checkpoint_provider.cli import change, release
from airflow_checkpoint_provider.location.fence import newest_batch
from tests.integration.runtime.plain_queries import location_of, plain_in_batch_one
from tests.integration.runtime.streams import EVERYWHERE, FILES, ending, killed_in_batch_one, running_forever, source
from tests.support.runs import Home
from tests.support.streams import add_files, expected_keys, rows_in


@pytest.mark.slow
@EVERYWHERE
def test_released_query_goes_on_without_this_package_and_comes_back(stream: Home) -> None:
    """Released in the middle of a batch, and adopted again after others."""
    running_forever(stream, STREAM_STATE="1")
    hold = killed_in_batch_one(stream)
    hold.unlink()
    ending(stream)
    change.restore(stream.store, "stream", None, change.RestoreSource("latest"), change.Approval(yes=True))
    uri, location = location_of(stream)
    release.release(stream.store, "stream", "rows", uri, None, change.Approval(yes=True))
    add_files(source(stream), *range(4, 8))
    refused = stream.run()
    assert refused.code != 0
    assert f"adopt='{location.uri}' takes it over again" in refused.log
    stream.env["STREAM_PLAIN"] = uri
    plain = stream.run()
    assert plain.code == 0, plain.log
    assert rows_in(stream.out, "key") == expected_keys(8)
    del stream.env["STREAM_PLAIN"]
    stream.env["STREAM_ADOPT"] = uri
    add_files(source(stream), *range(8, FILES))
    again = stream.run()
    assert again.code == 0, again.log
    assert rows_in(stream.out, "key") == expected_keys(FILES)


@pytest.mark.slow
def test_query_that_was_fenced_and_never_started_is_released(stream: Home, tmp_path: Path) -> None:
    """The batch in which the old application was runs again."""
    uri, location = location_of(stream)
    with plain_in_batch_one(stream, 4) as (plain, hold):
        plain.send(signal.SIGKILL)
        plain.wait()
    hold.unlink()
    del stream.env["STREAM_PLAIN"]
    stream.env["STREAM_ADOPT"] = uri
    killed = stream.killed("query/before-location")
    new = tmp_path / "new"
    assert f"checkpoints release stream rows --to FOLDER --adopted {location.uri}" in killed.log
    change.restore(stream.store, "stream", None, change.RestoreSource("latest"), change.Approval(yes=True))
    release.release(stream.store, "stream", "rows", str(new), location.uri, change.Approval(yes=True))
    assert newest_batch(location) == (1, True)
    add_files(source(stream), *range(4, FILES))
    ending(stream)
    del stream.env["STREAM_ADOPT"]
    stream.env["STREAM_PLAIN"] = str(new)
    ended = stream.run()
    assert ended.code == 0, ended.log
    assert rows_in(stream.out, "key") == expected_keys(FILES)
