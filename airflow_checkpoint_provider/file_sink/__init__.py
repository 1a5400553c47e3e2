"""The folder of a file sink: its log, and the files that are moved aside when a query goes back. No journal. Runs anywhere."""
