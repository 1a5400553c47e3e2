"""Checkpoints in Airflow's own pages: read-only. Runs in Airflow (API server)."""
