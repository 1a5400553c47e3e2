"""The location in which a query continues, and the files that are copied there. Runs in the Spark driver."""
