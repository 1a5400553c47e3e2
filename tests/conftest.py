"""For all tests: a home that Airflow may write into when it is imported, and the commands beside the interpreter."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

_home = tempfile.TemporaryDirectory(prefix="airflow-home-")
os.environ["AIRFLOW_HOME"] = _home.name
os.environ["AIRFLOW__CORE__LOAD_EXAMPLES"] = "False"
os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
