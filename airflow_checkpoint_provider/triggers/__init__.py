"""Triggers: what waits for a checkpoint while its task is deferred. Runs in Airflow (triggerer)."""
