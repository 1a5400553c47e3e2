"""In which location a query continues, and what is copied there. Runs in the Spark driver."""
