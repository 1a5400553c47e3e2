"""The texts and numbers that the pages print, made of a history. Runs in Airflow (API server); no I/O, no HTML."""
