"""The folder of Spark's file sink of a query: its log, and the files that are moved aside when a query goes back. No journal. Runs anywhere."""
