"""Checkpoints and savepoints as a driver takes them. Runs in the Spark driver."""
