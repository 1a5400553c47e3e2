"""Hooks, for people who write operators. Runs in Airflow (worker, API server, command line)."""
