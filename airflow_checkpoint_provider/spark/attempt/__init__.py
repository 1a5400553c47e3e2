"""One attempt of a job: its start, its journal, and what it costs to lose it. Runs in the Spark driver."""
