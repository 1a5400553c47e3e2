"""Sources of streaming queries: which rows they read, and whether they still have them. Runs in the Spark driver."""
