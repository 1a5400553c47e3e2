"""The command line, read-only: ``checkpoints`` and ``airflow checkpoints``. Runs anywhere."""
