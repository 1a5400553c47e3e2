"""The stores in which the benchmarks put checkpoints: a local disk, and the tests' S3 server in a process of its own. Runs on Linux.

All count their requests. The disk is that of the folder for temporary files.
"""

from __future__ import annotations

import multiprocessing
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path

from airflow_checkpoint_provider.storage import LocalStore, S3Settings, S3Store
from tests.support.faults import FaultyStore
from tests.support.s3server import S3Server

BUCKET = "lake"
PATIENCE = 60.0  # seconds that the server may take to start, and to end


@contextmanager
def local_store() -> Iterator[FaultyStore]:
    with tempfile.TemporaryDirectory(prefix="benchmarks-") as folder:
        yield FaultyStore(LocalStore(Path(folder) / "root"))


@contextmanager
def s3_store() -> Iterator[FaultyStore]:
    """The server has its own process, so that its work is not counted as that of the client."""
    processes = multiprocessing.get_context("spawn")
    here, there = processes.Pipe()
    server = processes.Process(target=_serve, args=(there,), daemon=True)
    server.start()
    try:
        if not here.poll(PATIENCE):
            raise TimeoutError(f"the S3 server did not start in {PATIENCE:.0f} seconds")
        settings: S3Settings = here.recv()
        yield FaultyStore(S3Store(BUCKET, "checkpoints", settings))
    finally:
        here.send("end")
        server.join(PATIENCE)
        server.kill()


def _serve(pipe: Connection) -> None:
    with S3Server() as server:
        server.make_bucket(BUCKET)
        pipe.send(server.settings())
        pipe.recv()


STORES = {"local disk": local_store, "S3": s3_store}
