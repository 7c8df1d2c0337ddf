"""The declaration of the Spark Connect server, and where commands and the health check find it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from deltaworks.control.health.report import subjects
from deltaworks.errors import ConfigError
from deltaworks.operations.continuous_jobs import continuous_job
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.checks.project import cluster_warnings
from deltaworks.specs.share_conf import connect_share
from deltaworks.specs.shares import ShareSpec
from deltaworks.specs.sql_server import ConnectListenSpec, SparkConnectSpec
from deltaworks.specs.storage import StorageSpec
from deltaworks.testing import declare_table, load_project, pipeline_spec, present

KEYS = {"access_key": "env:CONNECT_ACCESS_KEY", "secret_key": "env:CONNECT_SECRET_KEY"}


def project(root: Path, **section: Any) -> Catalog:
    return load_project(root, environment={"spark_connect": {"token": "env:CONNECT_TOKEN", **section}})


@pytest.mark.parametrize(
    ("section", "problem"),
    [
        ({"listen": {"host": "0.0.0.0"}}, "its token would be sent in plain text"),
        ({"token": "a token"}, "references, env:NAME"),
        ({"access_key": "env:A"}, "both access_key and secret_key"),
        (KEYS, "the lake is a folder, which has no keys"),
    ],
)
def test_a_wrong_declaration_is_rejected_with_its_key(tmp_path: Path, section: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match="SPEC_INVALID") as caught:
        project(tmp_path, **section)
    assert problem in str(caught.value)
    assert "local.yaml" in str(caught.value)


@pytest.mark.parametrize("listen", [{}, {"host": "::1"}, {"host": "localhost"}, {"host": "0.0.0.0", "plaintext": True}])
def test_plain_text_needs_this_machine_or_a_declaration(listen: dict[str, Any]) -> None:
    assert ConnectListenSpec.model_validate(listen).port == 15002


def test_it_reaches_the_lake_with_its_own_keys_where_it_declares_some() -> None:
    lake = StorageSpec.model_validate({"root": "s3://lake", "access_key": "env:A", "secret_key": "env:B"})
    bare, own = (SparkConnectSpec.model_validate({"token": "env:CONNECT_TOKEN", **keys}) for keys in ({}, KEYS))

    assert bare.storage(lake) == lake
    assert str(present(own.storage(lake).access_key)) == "env:CONNECT_ACCESS_KEY"
    assert str(present(own.storage(lake).secret_key)) == "env:CONNECT_SECRET_KEY"
    assert own.storage(lake).root == lake.root


def test_its_executors_are_those_of_a_stream_and_are_given_back_when_idle(tmp_path: Path) -> None:
    environment = project(tmp_path, share={"executors": 4}, driver_memory="3g").environment

    share = connect_share(present(environment.spark_connect), environment)

    assert (share.pool, share.executors, share.driver_memory) == ("streams", 4, "3g")
    assert share.uses_dynamic_allocation


def test_it_takes_a_slot_of_the_streams(tmp_path: Path) -> None:
    catalog = project(tmp_path)
    shares = catalog.environment.shares.model_copy(update={"stream": ShareSpec(slots=1)})
    environment = catalog.environment.model_copy(update={"shares": shares})

    assert list(cluster_warnings(environment, [])) == []
    ((key, text),) = cluster_warnings(environment, [pipeline_spec(declare_table("orders"))])
    assert (key, text[:41]) == (("shares", "stream", "slots"), "2 streams need as many slots, and the poo")


@pytest.mark.parametrize("name", ["spark_connect", "deltaworks__spark_connect"])
def test_it_is_watched_stopped_and_started_by_name(tmp_path: Path, name: str) -> None:
    catalog = project(tmp_path)

    job = continuous_job(catalog, name, is_start=False)

    (subject,) = [item for item in subjects(catalog) if item.kind == "spark_connect"]
    assert (subject.dag_id, subject.argument) == ("deltaworks__spark_connect", "spark_connect")
    assert (job.dag_id, job.heartbeats) == ("deltaworks__spark_connect", ("control/spark_connect/heartbeat.json",))
    assert "spark_connect" not in {item.kind for item in subjects(load_project(tmp_path / "without"))}
