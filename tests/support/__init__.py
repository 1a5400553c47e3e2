"""What tests and the demo share: a real Airflow, its REST client, waiting and processes."""
