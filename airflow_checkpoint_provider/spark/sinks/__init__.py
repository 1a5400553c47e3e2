"""The sinks of a script: prepared before a barrier, committed with its checkpoint. Runs in the Spark driver."""
