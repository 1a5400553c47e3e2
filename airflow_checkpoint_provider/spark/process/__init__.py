"""The driver's process: how it is watched and how it ends. Runs in the Spark driver."""
