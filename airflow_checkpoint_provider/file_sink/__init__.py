"""The folder of a file sink: its log, and what is moved aside when a query goes back. No journal. Runs anywhere."""
