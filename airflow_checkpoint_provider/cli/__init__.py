"""The command line: ``checkpoints`` and ``airflow checkpoints``. Runs anywhere."""
