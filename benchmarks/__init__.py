"""What the software costs its users, measured beside what they would use instead. Runs on Linux: ``python -m benchmarks``.

One module answers one question. ``rounds`` runs what is compared side by side, ``answers`` holds what came out, ``page`` and
``charts`` make docs/inside/performance.md of it.
"""
