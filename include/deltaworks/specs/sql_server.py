"""Specs of the servers that answer queries: `sql_server` and `spark_connect` of an environment.

The SQL server has users, whose passwords are in a file that is no part of the repository. Spark Connect has one token,
no users, and no TLS of its own.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Iterator
from typing import Annotated, Self

from pydantic import BeforeValidator, Field, model_validator

from deltaworks.specs.base import (
    Bytes,
    KeyPath,
    Name,
    SecretReference,
    Spec,
    TextOrReference,
    as_tuple,
    raise_problems,
    suggest_name,
)
from deltaworks.specs.shares import Memory, StreamShareSpec
from deltaworks.specs.storage import StorageSpec

#: Stands for all pipelines in a role, also those declared later.
ALL_PIPELINES = "*"
DEFAULT_PORT = 31337
CONNECT_PORT = 15002


def is_loopback(host: str) -> bool:
    """Returns whether only this machine reaches a server that listens on `host`."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class SqlTlsSpec(Spec):
    """The PEM files of the server's certificate chain and private key, read at each start."""

    certificate: TextOrReference = Field(description="path of the PEM file with the certificate and its chain")
    key: TextOrReference = Field(description="path of the PEM file with the private key")


class SqlListenSpec(Spec):
    """The address on which the SQL server listens."""

    host: str = Field(default="127.0.0.1", min_length=1)
    port: int = Field(default=DEFAULT_PORT, ge=0, le=65535, description="0: any free port")
    tls: SqlTlsSpec | None = Field(default=None, description="required for any host but this machine")
    plaintext: bool = Field(
        default=False, description="allow other machines without TLS, as behind a proxy that terminates it"
    )

    @model_validator(mode="after")
    def _check_tls(self) -> Self:
        if self.tls is not None and self.plaintext:
            raise_problems([(("plaintext",), "tls is declared, so plaintext has no effect: remove one of the two")])
        if self.tls is None and not self.plaintext and not is_loopback(self.host):
            text = (
                f"{self.host} is reached from other machines, which would send passwords in plain text: declare tls, "
                "or write plaintext: true if a proxy terminates TLS"
            )
            raise_problems([(("host",), text)])
        return self


class SqlRoleSpec(Spec):
    """What the users of a role may read."""

    pipelines: Annotated[tuple[str, ...], BeforeValidator(as_tuple)] = Field(
        min_length=1, description='names of pipelines, or "*" for all'
    )
    personal: bool = Field(default=False, description="whether personal columns have values instead of null")
    query_log: bool = Field(default=False, description="whether they read the log of all queries")


class SqlLimitsSpec(Spec):
    """Limits of the SQL server. A query over its limit fails; one that finds no free slot waits."""

    memory: Bytes = Field(default=512 << 20, description="memory of one query; it never spills to disk")
    threads: int = Field(default=2, ge=1, le=64, description="threads of one query")
    seconds: float = Field(default=300.0, gt=0, description="from the start of a query until its last row was sent")
    rows: int = Field(default=10_000_000, ge=1, description="rows of a result")
    queries: int = Field(default=8, ge=1, le=256, description="queries that run at the same time")
    queries_per_user: int = Field(default=4, ge=1, description="queries of one user that run at the same time")
    wait_seconds: float = Field(default=30.0, ge=0, description="how long a query waits for a free slot")
    waiting_per_user: int = Field(default=100, ge=0, description="queries of one user that wait for a slot")


class SqlServerSpec(Spec):
    """The SQL server: Arrow Flight SQL over all tables and views, read-only."""

    listen: SqlListenSpec = SqlListenSpec.defaults()
    users: TextOrReference = Field(description="path of the file of users")
    roles: dict[Name, SqlRoleSpec] = Field(min_length=1)
    limits: SqlLimitsSpec = SqlLimitsSpec.defaults()
    fresh_seconds: float = Field(
        default=5.0, ge=0, le=3600, description="a query reads every commit that is older than this"
    )
    log_days: int = Field(default=90, ge=1, description="days after which the query log drops a query")

    def problems(self, pipelines: Collection[str]) -> Iterator[tuple[KeyPath, str]]:
        """Yields the roles that name unknown pipelines, with the closest name."""
        for role, spec in self.roles.items():
            for position, name in enumerate(spec.pipelines):
                if name != ALL_PIPELINES and name not in pipelines:
                    key_path = ("sql_server", "roles", role, "pipelines", position)
                    yield key_path, f"unknown pipeline {name!r}; {suggest_name(name, pipelines)}"


class ConnectListenSpec(Spec):
    """The address on which Spark Connect listens."""

    host: str = Field(default="127.0.0.1", min_length=1)
    port: int = Field(default=CONNECT_PORT, ge=0, le=65535, description="0: any free port")
    plaintext: bool = Field(default=False, description="allow other machines, as behind a proxy that terminates TLS")

    @model_validator(mode="after")
    def _check_host(self) -> Self:
        if not self.plaintext and not is_loopback(self.host):
            text = (
                f"{self.host} is reached from other machines, and Spark Connect has no TLS, so its token would be sent "
                "in plain text: keep this machine, or write plaintext: true if a proxy terminates TLS"
            )
            raise_problems([(("host",), text)])
        return self


class SparkConnectSpec(Spec):
    """Spark sessions of other machines, on the cluster. Who has the token has the rights of the server's process."""

    listen: ConnectListenSpec = ConnectListenSpec.defaults()
    token: SecretReference = Field(description="the token of all clients")
    access_key: SecretReference | None = Field(
        default=None, description="key of the lake for this server, which may only read tables; by default the lake's"
    )
    secret_key: SecretReference | None = None
    driver_memory: Memory = "1g"
    share: StreamShareSpec | None = Field(default=None, description="its executors; by default those of a stream")

    @model_validator(mode="after")
    def _check_both_keys(self) -> Self:
        if (self.access_key is None) != (self.secret_key is None):
            raise_problems([(("access_key",), "give both access_key and secret_key, or neither")])
        return self

    def storage(self, declared: StorageSpec) -> StorageSpec:
        """Returns a storage as this server reaches it: with its own keys if it declares some."""
        if self.access_key is None or declared.scheme != "s3":
            return declared
        keys = {"access_key": self.access_key, "secret_key": self.secret_key, "aws_conn_id": None}
        return declared.model_copy(update=keys)
