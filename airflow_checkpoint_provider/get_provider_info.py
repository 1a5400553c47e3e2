"""What Airflow reads about this package at every start. Runs in Airflow (all processes); imports nothing.

One violation of Airflow's schema here and every ``airflow`` command fails: ``tests/unit/test_provider_info.py``.
"""

from __future__ import annotations

from typing import Any

INTEGRATION = "Spark Checkpoints"


def get_provider_info() -> dict[str, Any]:
    return {
        "package-name": "airflow-checkpoint-provider",
        "name": INTEGRATION,
        "description": "Spark jobs that continue from their latest completed checkpoint.",
        "integrations": [{"integration-name": INTEGRATION, "tags": ["apache", "software"]}],
        "operators": [{"integration-name": INTEGRATION, "python-modules": ["airflow_checkpoint_provider.operators"]}],
        "hooks": [
            {
                "integration-name": INTEGRATION,
                "python-modules": [
                    "airflow_checkpoint_provider.hooks.checkpoint_storage",
                    "airflow_checkpoint_provider.hooks.spark_submit",
                ],
            }
        ],
        "connection-types": [
            {
                "connection-type": "checkpoint_storage",
                "hook-class-name": "airflow_checkpoint_provider.hooks.checkpoint_storage.CheckpointStorageHook",
                "hook-name": "Checkpoint Storage",
                "conn-fields": {
                    "root": {
                        "label": "Root",
                        "description": "A folder that Airflow and all Spark drivers see under the same absolute path.",
                        "schema": {"type": "string"},
                    }
                },
                "ui-field-behaviour": {
                    "hidden-fields": ["host", "schema", "login", "password", "port", "extra"],
                    "relabeling": {},
                    "placeholders": {"root": "/shared/checkpoints"},
                },
            }
        ],
        "cli": ["airflow_checkpoint_provider.cli.airflow_cli.get_cli_commands"],
    }
