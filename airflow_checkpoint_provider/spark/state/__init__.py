"""The states of a job: what a checkpoint holds besides stages. Runs in the Spark driver."""
