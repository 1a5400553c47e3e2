"""The description of this package, which Airflow reads at every start. Runs in Airflow (all processes); imports nothing.

If it violates Airflow's schema, every ``airflow`` command fails; ``tests/unit/test_provider_info.py`` checks it.
"""

from __future__ import annotations

from typing import Any

INTEGRATION = "Spark Checkpoints"


def _optional_field(label: str, description: str, **schema: Any) -> dict[str, Any]:
    """Return a field of the connection's form that may stay empty."""
    return {"label": label, "description": description, "schema": {"type": ["string", "null"], **schema}}


def _s3_field(label: str, description: str, **schema: Any) -> dict[str, Any]:
    return _optional_field(label, f"S3 only. {description}", **schema)


def get_provider_info() -> dict[str, Any]:
    return {
        "package-name": "airflow-checkpoint-provider",
        "name": INTEGRATION,
        "description": "Spark jobs that continue from their latest completed checkpoint.",
        "integrations": [
            {
                "integration-name": INTEGRATION,
                "tags": ["apache", "software"],
                "how-to-guide": [
                    "/docs/start/first-job.md",
                    "/docs/start/first-stream.md",
                    "/docs/orchestrate/submit.md",
                    "/docs/orchestrate/audit.md",
                    "/docs/orchestrate/savepoints.md",
                    "/docs/operate/retries-and-health.md",
                ],
            }
        ],
        "operators": [{"integration-name": INTEGRATION, "python-modules": ["airflow_checkpoint_provider.operators"]}],
        "sensors": [{"integration-name": INTEGRATION, "python-modules": ["airflow_checkpoint_provider.sensors"]}],
        "notifications": ["airflow_checkpoint_provider.notifications.CheckpointNotifier"],
        "triggers": [
            {
                "integration-name": INTEGRATION,
                "python-modules": [
                    "airflow_checkpoint_provider.triggers.assets",
                    "airflow_checkpoint_provider.triggers.checkpoint",
                    "airflow_checkpoint_provider.triggers.launch",
                ],
            }
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
        "extra-links": ["airflow_checkpoint_provider.operators._link.CheckpointsLink"],
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
                    "code": _optional_field(
                        "Code",
                        "Where the cluster reads this package, for operators other than spark-submit: s3a://bucket/code, or a folder. Only"
                        " Airflow and administrators may write there.",
                    ),
                    "endpoint_url": _s3_field(
                        "Endpoint URL", "http(s)://host:port of the service. Leave it empty for Amazon S3."
                    ),
                    "region_name": _s3_field("Region", "For Amazon S3: the region of the bucket."),
                    "addressing_style": _s3_field(
                        "Addressing style",
                        "Where the URL holds the bucket's name. Not set: in the path if there is an endpoint URL, else boto3's default.",
                        enum=["path", "virtual", "auto", None],
                        values_display={"null": "not set"},  # JavaScript's name of None
                    ),
                    "verify": _s3_field(
                        "Verify", "Path of a file with the certificates to trust. Empty: boto3's default certificates."
                    ),
                    "role_arn": _s3_field(
                        "Role ARN",
                        "The role to assume with the keys, or with the default AWS credentials if there are none.",
                    ),
                    "profile_name": _s3_field(
                        "Profile", "A profile of the shared AWS files on the hosts of Airflow and of the drivers."
                    ),
                    "aws_session_token": _s3_field(
                        "Session token",
                        "For temporary keys. It expires; the keys of a role are renewed.",
                        format="password",
                    ),
                },
                "ui-field-behaviour": {
                    "hidden-fields": ["host", "schema", "port", "extra"],
                    "relabeling": {"login": "Access key id (S3)", "password": "Secret access key (S3)"},
                    "placeholders": {
                        "root": "s3://lake/checkpoints or /shared/checkpoints",
                        "login": "empty: the default AWS credentials of the host",
                    },
                },
            }
        ],
        "config": {
            "checkpoints": {
                "description": "The pages that show checkpoints.",
                "options": {
                    "connections": {
                        "description": (
                            "The connections that the pages open, separated by commas. Empty: only ``checkpoint_default``. Through a"
                            " connection without a login, the API server sends requests with its own keys to the connection's endpoint."
                        ),
                        "version_added": "0.1.0",
                        "type": "string",
                        "example": "checkpoint_default,streams",
                        "default": "",
                    }
                },
            }
        },
        "cli": ["airflow_checkpoint_provider.cli.airflow_cli.get_cli_commands"],
    }
