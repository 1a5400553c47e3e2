"""Sinks of streaming queries: which batches they have, and how they go back. Runs in the Spark driver."""
