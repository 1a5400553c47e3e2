"""The command line: ``checkpoints`` and ``airflow checkpoints``. Runs anywhere."""

LIMIT = 20  # lines that a list prints by default
