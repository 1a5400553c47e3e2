"""Policies: pure functions over lists of records. Runs anywhere."""
