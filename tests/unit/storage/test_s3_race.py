"""32 processes at one key of an S3 server: each key has one winner, and all read what it wrote. Runs on Linux."""

from __future__ import annotations

from tests.unit.storage.s3_contract import RaceContract


class TestRace(RaceContract):
    """With the server of the tests. Ceph has more rounds, in the slow suite."""

    rounds = 2
