"""Reads keys of the lake from Airflow's connections in the task and passes them to jobs as environment variables.

No argument, no Spark setting on the command line and no operator field contains a key. So Airflow neither renders nor
stores keys, and its logs mask them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from deltaworks.errors import ConfigError
from deltaworks.specs.base import resolve_text
from deltaworks.specs.storage import AwsSpec, connection_variables

if TYPE_CHECKING:
    from deltaworks.specs.environment import EnvironmentSpec

#: Connection fields whose presence means that the keys expire or depend on the machine.
_TEMPORARY_KEY_FIELDS = ("role_arn", "assume_role_method", "profile_name")


def set_environment_keys(environment: EnvironmentSpec) -> None:
    """Sets the environment variables for all connections that an environment names, in this process and its children.

    Does nothing if it names no connection. Idempotent.

    Raises:
        ConfigError: AWS_CONNECTION_MISSING, AWS_CONNECTION_INVALID.
    """
    set_keys([environment.lake, environment.landing, environment.messaging])


def set_keys(storages: Iterable[AwsSpec]) -> None:
    """Sets the environment variables for the connections of some storages. Keeps variables that are already set.

    Raises:
        ConfigError: AWS_CONNECTION_MISSING, AWS_CONNECTION_INVALID.
    """
    connections: dict[str, Any] = {}
    for storage in storages:
        conn_id = storage.aws_conn_id
        if conn_id is None or (storage.access_key is not None and storage.access_key.name in os.environ):
            continue
        if conn_id not in connections:
            connections[conn_id] = _read_connection(conn_id)
        _check_endpoint(storage, connections[conn_id])
    for conn_id, keys in connections.items():
        variables = connection_variables(
            conn_id,
            access_key=keys.aws_access_key_id,
            secret_key=keys.aws_secret_access_key,
            token=keys.aws_session_token,
        )
        _mask_in_logs(variables.values())
        os.environ.update(variables)


def refuse_remote_drivers(environment: EnvironmentSpec, host: str) -> None:
    """Rejects connections with keys if the driver runs on another machine.

    Such a driver would get the keys only on its command line, which must not contain any.

    Raises:
        ConfigError: AWS_CONNECTION_INVALID.
    """
    conn_ids = {storage.aws_conn_id for storage in (environment.lake, environment.landing, environment.messaging)} - {
        None
    }
    if conn_ids:
        raise _invalid_connection(
            " and ".join(sorted(map(repr, conn_ids))),
            f"cannot give keys to a driver in cluster mode on {host}: they would be on spark-submit's command line",
            "Remove aws_conn_id from the environment, and give the driver's pods or containers a role, or variables "
            "from the cluster's own secrets (access_key: env:NAME).",
        )


def _read_connection(conn_id: str) -> Any:
    """Returns a connection as the amazon provider parses it."""
    from airflow.providers.amazon.aws.utils.connection_wrapper import AwsConnectionWrapper
    from airflow.sdk import BaseHook
    from airflow.sdk.exceptions import AirflowNotFoundException

    example = '\'{"conn_type": "aws", "login": "ACCESS KEY", "password": "SECRET KEY"}\''
    try:
        connection = BaseHook.get_connection(conn_id)
    except AirflowNotFoundException as error:
        raise ConfigError(
            "AWS_CONNECTION_MISSING",
            f"Airflow has no connection {conn_id!r}, which aws_conn_id of the environment names.",
            hint=f"Create it: airflow connections add {conn_id} --conn-json {example}; or correct aws_conn_id.",
        ) from error
    if connection.conn_type != "aws":
        hint = f"Create one of the type aws: airflow connections add {conn_id} --conn-json {example}."
        raise _invalid_connection(repr(conn_id), f"is of the type {connection.conn_type!r} and not aws", hint)
    extra = connection.extra_dejson
    if unsupported := [name for name in _TEMPORARY_KEY_FIELDS if extra.get(name)]:
        raise _invalid_connection(
            repr(conn_id),
            f"has {', '.join(unsupported)}: such keys expire while jobs run, or belong to another machine",
            "Give it keys that last, as login and password; or remove aws_conn_id from the environment, and give the "
            "machines that role.",
        )
    keys = AwsConnectionWrapper(connection)
    if not keys.aws_access_key_id or not keys.aws_secret_access_key:
        raise _invalid_connection(
            repr(conn_id),
            "has no keys: its login is the access key and its password the secret key",
            "Write both, or remove aws_conn_id from the environment if the machines have a role.",
        )
    return keys


def _check_endpoint(storage: AwsSpec, connection: Any) -> None:
    """Rejects a connection with another region or endpoint than the environment declares."""
    declared = {"region_name": storage.region, "endpoint_url": resolve_text(storage.endpoint or "")}
    fields = {"region_name": "region", "endpoint_url": "endpoint"}
    for name, value in declared.items():
        actual = getattr(connection, name)
        if actual and actual.rstrip("/") != value.rstrip("/"):
            raise _invalid_connection(
                repr(storage.aws_conn_id),
                f"has {name} {actual}, and the environment {fields[name]} {value or 'of AWS'}",
                f"Write {fields[name]}: {actual} next to aws_conn_id in the environment, or correct the connection.",
            )


def _invalid_connection(conn_id: str, problem: str, hint: str) -> ConfigError:
    return ConfigError("AWS_CONNECTION_INVALID", f"Airflow's connection {conn_id} {problem}.", hint=hint)


def _mask_in_logs(values: Iterable[str]) -> None:
    from airflow.sdk.log import mask_secret

    for value in values:
        if value:
            mask_secret(value)
