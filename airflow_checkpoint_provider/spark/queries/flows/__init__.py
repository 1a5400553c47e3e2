"""What one query writes and another has yet to read. Runs in the Spark driver."""
