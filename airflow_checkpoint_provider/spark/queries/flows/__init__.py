"""The flow of rows from one query to another one. Runs in the Spark driver."""
