"""What the pages print: texts and numbers, made of a history. Runs in Airflow (API server); no I/O, no HTML."""
