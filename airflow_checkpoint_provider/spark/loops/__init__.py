"""Loops whose finished turns no retry runs again, and the DataFrames that they replace. Runs in the Spark driver."""
