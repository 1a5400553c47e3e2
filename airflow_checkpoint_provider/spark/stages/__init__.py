"""Stages: rows that are computed once in a run, stored, and read back. Runs in the Spark driver."""
