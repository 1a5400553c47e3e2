"""One attempt of a job: its start, its journal, its protection and its end. Runs in the Spark driver."""
