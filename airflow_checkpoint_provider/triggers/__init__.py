"""Triggers that wait for checkpoints while their task is deferred. Runs in Airflow (triggerer)."""
