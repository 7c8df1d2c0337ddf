"""Spec of an object store, and its settings for each client library.

S3A (Spark), pyarrow, deltalake and boto3 name endpoint, region, keys and addressing differently; a contract test
compares the four.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Literal, Self
from urllib.parse import urlparse

from pydantic import Field, field_validator, model_validator

from deltaworks.specs.base import (
    CONNECTION_VARIABLE_PREFIX,
    Name,
    Reference,
    SecretReference,
    Spec,
    TextOrReference,
    resolve_text,
)

Scheme = Literal["s3", "file"]
_SESSION = "SESSION_TOKEN"


class AwsSpec(Spec):
    """An AWS account, or a compatible server, for boto3.

    With `aws_conn_id` the keys come from an Airflow connection. Airflow tasks pass them to jobs as environment
    variables, to which `access_key` and `secret_key` refer.
    """

    endpoint: TextOrReference | None = None
    region: str = "us-east-1"
    access_key: SecretReference | None = None
    secret_key: SecretReference | None = None
    aws_conn_id: Name | None = Field(default=None, description="Airflow connection with the keys")

    @model_validator(mode="before")
    @classmethod
    def _expand_connection(cls, declared: Any) -> Any:
        if not isinstance(declared, dict) or not isinstance(declared.get("aws_conn_id"), str):
            return declared
        keys = connection_keys(declared["aws_conn_id"].strip())
        if any(_reference_text(declared.get(name)) not in ("", keys[name]) for name in keys):
            raise ValueError("give either aws_conn_id, or access_key and secret_key: the connection has the keys")
        return {**declared, **keys}

    @model_validator(mode="after")
    def _check_both_keys(self) -> Self:
        if (self.access_key is None) != (self.secret_key is None):
            raise ValueError("give both access_key and secret_key, or neither (then a role or profile applies)")
        return self

    def boto3_options(self) -> dict[str, Any]:
        """Returns keyword arguments of `boto3.client`. Without keys, boto3 uses its default chain (role, profile)."""
        options: dict[str, Any] = {"region_name": self.region}
        if self.endpoint is not None:
            options["endpoint_url"] = resolve_text(self.endpoint)
        if self.access_key is not None and self.secret_key is not None:
            options["aws_access_key_id"] = self.access_key.resolve()
            options["aws_secret_access_key"] = self.secret_key.resolve()
        if token := self.session_token():
            options["aws_session_token"] = token
        return options

    def session_token(self) -> str | None:
        """Returns the session token of a connection with temporary keys; None for other keys."""
        variable = _token_variable(self.access_key)
        return (os.environ.get(variable) or None) if variable else None


class StorageSpec(AwsSpec):
    """An object store and a root folder in it: `s3://bucket/prefix` or `file:///path`."""

    root: str
    path_style: bool = False

    @field_validator("root")
    @classmethod
    def _check_scheme(cls, value: str) -> str:
        parsed = urlparse(value)
        on_s3 = parsed.scheme == "s3" and bool(parsed.netloc)
        on_disk = parsed.scheme == "file" and not parsed.netloc and parsed.path.strip("/")
        if not (on_s3 or on_disk):
            raise ValueError("write s3://bucket/prefix or file:///absolute/path")
        return value.rstrip("/")

    @property
    def scheme(self) -> Scheme:
        """The kind of store, from the root's URI: `s3` or `file`."""
        return "s3" if self.root.startswith("s3://") else "file"

    @property
    def bucket(self) -> str:
        """The bucket; empty on local disk."""
        return urlparse(self.root).netloc

    @property
    def prefix(self) -> str:
        """The key prefix of the root in its bucket; on local disk the absolute folder."""
        path = urlparse(self.root).path
        return path.strip("/") if self.scheme == "s3" else path.rstrip("/")

    def with_bucket(self, bucket: str) -> Self:
        """Returns the same store with another bucket as root. Returns a local folder unchanged."""
        return self if self.scheme == "file" else self.model_copy(update={"root": f"s3://{bucket}"})

    def uri(self, key: str = "") -> str:
        """Returns the URI of a key in the form that boto3 and deltalake use."""
        return f"{self.root}/{key}" if key else self.root

    def spark_uri(self, key: str = "") -> str:
        """Returns the URI of a key in Spark's form, with the scheme `s3a`."""
        uri = self.uri(key)
        return "s3a://" + uri.removeprefix("s3://") if self.scheme == "s3" else uri

    def deltalake_options(self) -> dict[str, str]:
        """Returns `storage_options` of deltalake. It commits by conditional puts, so a version is written only once."""
        if self.scheme == "file":
            return {}
        options = {"AWS_REGION": self.region, "aws_conditional_put": "etag"}
        if self.endpoint is not None:
            endpoint = resolve_text(self.endpoint)
            options["AWS_ENDPOINT_URL"] = endpoint
            if endpoint.startswith("http://"):
                options["AWS_ALLOW_HTTP"] = "true"
        if self.access_key is not None and self.secret_key is not None:
            options["AWS_ACCESS_KEY_ID"] = self.access_key.resolve()
            options["AWS_SECRET_ACCESS_KEY"] = self.secret_key.resolve()
        if token := self.session_token():
            options["AWS_SESSION_TOKEN"] = token
        options["AWS_VIRTUAL_HOSTED_STYLE_REQUEST"] = "false" if self.path_style else "true"
        return options

    def arrow_options(self) -> dict[str, Any]:
        """Returns keyword arguments of `pyarrow.fs.S3FileSystem`."""
        if self.scheme == "file":
            return {}
        options: dict[str, Any] = {
            "region": self.region,
            "force_virtual_addressing": not self.path_style,
            # One request for a small file, instead of three of a multipart upload.
            "allow_delayed_open": True,
        }
        if self.endpoint is not None:
            parsed = urlparse(resolve_text(self.endpoint))
            options["endpoint_override"] = parsed.netloc
            options["scheme"] = parsed.scheme
        if self.access_key is not None and self.secret_key is not None:
            options["access_key"] = self.access_key.resolve()
            options["secret_key"] = self.secret_key.resolve()
        if token := self.session_token():
            options["session_token"] = token
        return options

    def spark_conf(self) -> dict[str, str]:
        """Returns the S3A settings of this bucket only (`fs.s3a.bucket.<name>.*`), so that a session can use several
        stores.

        They contain keys: set them on the driver's session, never on a command line.
        """
        if self.scheme == "file":
            return {}
        base = f"spark.hadoop.fs.s3a.bucket.{self.bucket}"
        conf = {
            f"{base}.endpoint.region": self.region,
            f"{base}.path.style.access": str(self.path_style).lower(),
        }
        if self.endpoint is not None:
            endpoint = resolve_text(self.endpoint)
            conf[f"{base}.endpoint"] = endpoint
            conf[f"{base}.connection.ssl.enabled"] = str(endpoint.startswith("https")).lower()
        if self.access_key is not None and self.secret_key is not None:
            conf[f"{base}.access.key"] = self.access_key.resolve()
            conf[f"{base}.secret.key"] = self.secret_key.resolve()
            conf[f"{base}.aws.credentials.provider"] = "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider"
        if token := self.session_token():
            conf[f"{base}.session.token"] = token
            conf[f"{base}.aws.credentials.provider"] = "org.apache.hadoop.fs.s3a.TemporaryAWSCredentialsProvider"
        return conf


def set_missing_variables(variables: Mapping[str, str]) -> None:
    """Sets those environment variables that the process does not have yet. Idempotent."""
    for name, value in variables.items():
        os.environ.setdefault(name, value)


def resolved_variables(storage: AwsSpec) -> dict[str, str]:
    """Returns the environment variables that a storage refers to, with their values in this process."""
    references = [storage.endpoint, storage.access_key, storage.secret_key]
    variables = {
        reference.name: reference.resolve()
        for reference in references
        if reference is not None and not isinstance(reference, str)
    }
    token, variable = storage.session_token(), _token_variable(storage.access_key)
    return variables | {variable: token} if token and variable else variables


def connection_keys(conn_id: str) -> dict[str, str]:
    """Returns references to the variables with the keys of an Airflow connection, by spec field."""
    prefix = f"env:{CONNECTION_VARIABLE_PREFIX}{conn_id.upper()}"
    return {name: f"{prefix}_{name.upper()}" for name in ("access_key", "secret_key")}


def connection_variables(conn_id: str, *, access_key: str, secret_key: str, token: str | None) -> dict[str, str]:
    """Returns the environment variables that pass a connection's keys to jobs. Without a session token its variable is
    empty.
    """
    prefix = f"{CONNECTION_VARIABLE_PREFIX}{conn_id.upper()}"
    return {
        f"{prefix}_ACCESS_KEY": access_key,
        f"{prefix}_SECRET_KEY": secret_key,
        f"{prefix}_{_SESSION}": token or "",
    }


def _reference_text(reference: Any) -> str:
    """Returns a reference in its YAML form."""
    if isinstance(reference, dict):
        return f"{reference.get('scheme')}:{reference.get('name')}"
    return "" if reference is None else str(reference)


def _token_variable(access_key: Reference | None) -> str | None:
    """Returns the variable with the session token that belongs to a connection's access key; None for other keys."""
    if access_key is None or not access_key.name.startswith(CONNECTION_VARIABLE_PREFIX):
        return None
    return access_key.name.removesuffix("ACCESS_KEY") + _SESSION
