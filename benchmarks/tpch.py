"""TPC-H tables as Parquet files, generated once and kept in the user's cache. Runs anywhere."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

TABLES = ("lineitem", "orders", "customer", "partsupp", "nation")
PARTS = 4  # files a table: more than the two cores
PATIENCE = 600  # seconds


def cache() -> Path:
    """Return the folder for what is generated once: below ``XDG_CACHE_HOME``, outside of the checkout."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "airflow-checkpoint-provider" / "tpch"


def tables(scale: float) -> Path:
    """Return the folder with the tables at this scale factor, one folder of Parquet files a table; generate it if absent.

    Nothing is seen half written: the tables are generated beside their place and renamed.
    """
    place = cache() / f"{scale:g}"
    if not place.exists():
        place.parent.mkdir(parents=True, exist_ok=True)
        beside = Path(tempfile.mkdtemp(prefix="unfinished-", dir=place.parent))
        try:
            _generate(scale, beside)
            beside.rename(place)
        except OSError:
            if not place.exists():  # else another process was first
                raise
        finally:
            shutil.rmtree(beside, ignore_errors=True)
    return place


def _generate(scale: float, folder: Path) -> None:
    command = Path(sys.executable).with_name("tpchgen-cli")
    subprocess.run(
        [
            *(str(command), "parquet", "--quiet", "--scale-factor", str(scale), "--parts", str(PARTS)),
            *("--tables", ",".join(TABLES), "--output-dir", str(folder)),
        ],
        check=True,
        timeout=PATIENCE,
    )
