"""An application that was not rewritten: no CheckpointedJob, and for the speed of it no Spark. Runs in the Spark driver."""

from __future__ import annotations

print("plain as ever")
