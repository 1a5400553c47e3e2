"""What Airflow reads about this package at every start. Runs in Airflow (all processes); imports nothing.

One violation of Airflow's schema here and every ``airflow`` command fails: ``tests/unit/test_provider_info.py``.
"""

from __future__ import annotations

from typing import Any

INTEGRATION = "Spark Checkpoints"


def _of_s3(label: str, description: str, **schema: Any) -> dict[str, Any]:
    """A field of the connection's form that may stay empty."""
    return {
        "label": label,
        "description": f"S3 only. {description}",
        "schema": {"type": ["string", "null"], **schema},
    }


def get_provider_info() -> dict[str, Any]:
    return {
        "package-name": "airflow-checkpoint-provider",
        "name": INTEGRATION,
        "description": "Spark jobs that continue from their latest completed checkpoint.",
        "integrations": [{"integration-name": INTEGRATION, "tags": ["apache", "software"]}],
        "operators": [{"integration-name": INTEGRATION, "python-modules": ["airflow_checkpoint_provider.operators"]}],
        "sensors": [{"integration-name": INTEGRATION, "python-modules": ["airflow_checkpoint_provider.sensors"]}],
        "triggers": [
            {"integration-name": INTEGRATION, "python-modules": ["airflow_checkpoint_provider.triggers.checkpoint"]}
        ],
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
                        "description": "s3://bucket/prefix, or a folder that Airflow and all Spark drivers see under one path.",
                        "schema": {"type": "string"},
                    },
                    "endpoint_url": _of_s3(
                        "Endpoint URL", "http(s)://host:port of the service. Amazon's own needs none."
                    ),
                    "region_name": _of_s3("Region", "For Amazon the bucket's."),
                    "addressing_style": _of_s3(
                        "Addressing style",
                        "Where the bucket's name stands. Empty: in the path with an endpoint URL, else as Amazon likes it.",
                        enum=["path", "virtual", "auto", None],
                    ),
                    "verify": _of_s3(
                        "Verify", "Path of a file with the certificates to trust; empty: those that everybody trusts."
                    ),
                    "role_arn": _of_s3(
                        "Role ARN", "A role to assume with the keys, or with what is found without them."
                    ),
                    "profile_name": _of_s3("Profile", "Of the shared AWS files, where Airflow and the drivers run."),
                    "aws_session_token": _of_s3(
                        "Session token", "Of temporary keys. It ends; a role is renewed.", format="password"
                    ),
                },
                "ui-field-behaviour": {
                    "hidden-fields": ["host", "schema", "port", "extra"],
                    "relabeling": {"login": "Access key id (S3)", "password": "Secret access key (S3)"},
                    "placeholders": {
                        "root": "s3://lake/checkpoints or /shared/checkpoints",
                        "login": "empty: as the AWS tools find them on the machine",
                    },
                },
            }
        ],
        "cli": ["airflow_checkpoint_provider.cli.airflow_cli.get_cli_commands"],
    }
