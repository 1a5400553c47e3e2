"""``terminal.py COMMAND ...`` runs a command in a terminal of its own and prints what is shown there. Runs on Linux."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from contextlib import suppress


def main(command: list[str]) -> int:
    """Return the exit code. The command stays in this process group, so both end together."""
    screen, terminal = pty.openpty()
    process = subprocess.Popen(command, stdin=terminal, stdout=terminal, stderr=terminal)
    os.close(terminal)
    with suppress(OSError):  # Linux' way to say that nobody has the terminal open
        while shown := os.read(screen, 65536):
            sys.stdout.buffer.write(shown)
            sys.stdout.buffer.flush()
    return process.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
