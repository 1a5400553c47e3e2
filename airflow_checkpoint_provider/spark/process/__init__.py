"""The driver's process: the watch of its JVM, its progress, and its end. Runs in the Spark driver."""
