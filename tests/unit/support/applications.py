"""Applications without Spark, for the tests of the services. They run on the services' host."""

from __future__ import annotations

from pathlib import Path

WAITS = "import subprocess; print('HERE', flush=True); subprocess.run(['sleep', '600'])"
DEAF = "import signal, time; signal.signal(15, lambda *_: None); print('HERE', flush=True); time.sleep(600)"
TELLS = (
    "import json, os, sys; print('TELLS', json.dumps([sys.argv[1:], os.environ.get('A'), os.environ.get('SECRET')]))"
)
FAILS = "raise SystemExit(3)"


def script(folder: Path, text: str) -> str:
    """Return the path of a new file with a program of Python."""
    file = folder / f"app-{len(list(folder.glob('app-*')))}.py"
    file.write_text(text)
    return str(file)
