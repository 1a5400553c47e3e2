"""Checkpointed Spark pipelines for Apache Airflow. Runs anywhere; imports nothing heavy."""

__version__ = "0.1.0"
