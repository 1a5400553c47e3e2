"""32 processes at one key of an S3 server: each key has one winner, and all read what it wrote. Runs on Linux."""

from __future__ import annotations

import pytest

from tests.unit.storage.s3_contract import RaceContract


@pytest.mark.slow  # test_contract.py creates an object twice, test_s3_journal.py lets six writers race
class TestRace(RaceContract):
    """With the server of the tests."""
