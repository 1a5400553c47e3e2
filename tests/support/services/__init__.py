"""Services that submit Spark jobs, for tests: each speaks the API of the real one, and runs a real ``spark-submit``. Runs on Linux."""
