"""Streaming queries as states of a job: a query goes on exactly where it was. Runs in the Spark driver."""
