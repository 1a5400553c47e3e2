"""Hooks, for people who write operators. Runs in Airflow (each process, command line)."""
