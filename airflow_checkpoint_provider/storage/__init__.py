"""The checkpoint storage: one small interface, and the stores that implement it. Runs anywhere."""

from airflow_checkpoint_provider.storage.base import Listed, Put, Store
from airflow_checkpoint_provider.storage.copy import copy_all
from airflow_checkpoint_provider.storage.local import LocalStore
from airflow_checkpoint_provider.storage.memory import MemoryStore
from airflow_checkpoint_provider.storage.probe import probe
from airflow_checkpoint_provider.storage.registry import open_store
from airflow_checkpoint_provider.storage.s3 import S3Store
from airflow_checkpoint_provider.storage.s3_credentials import S3Settings

__all__ = [
    "Listed",
    "LocalStore",
    "MemoryStore",
    "Put",
    "S3Settings",
    "S3Store",
    "Store",
    "copy_all",
    "open_store",
    "probe",
]
