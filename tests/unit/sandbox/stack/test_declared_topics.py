"""A stack starts a broker and generates network databases only if its pipelines need them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from deltaworks.control import paths
from deltaworks.control.objects import LocalObjects
from deltaworks.events.source_fields import pin_databases
from deltaworks.specs.catalog import PROJECT_ROOT
from deltaworks.specs.project import load_catalog
from deltaworks.testing import declare_pipeline, declare_table, present, write_project
from generator.networks import ASN_DATABASE, CITY_DATABASE
from sandbox.demo.demo_options import demo_settings
from sandbox.servers.landing import LAKE_BUCKET, LANDING_BUCKET, PARTNERS_BUCKET, VAULT_BUCKET, landing_client
from sandbox.stack.declared_topics import declared_collector, declared_streams, declared_topics
from sandbox.stack.home import StackHome
from sandbox.stack.sample_databases import put_sample_databases
from sandbox.stack.secrets import load_or_create_secrets
from sandbox.stack.source_creation import create_sources
from sandbox.stack.stack_programs import COLLECTOR, KAFKA, PROGRAMS, STOP_ORDER, STORES, stack_programs
from tests.unit.kubernetes.conftest import write_collector
from tests.unit.sources.conftest import aws_endpoint

__all__ = ["aws_endpoint"]
ENVIRONMENT = "environment: local\nlake: {root: file:///lake}\nlanding: {root: file:///landing}\nmessaging: {}\n"
KAFKA_SOURCE = {"kind": "kafka", "bootstrap_servers": "env:DELTAWORKS_KAFKA_BOOTSTRAP", "topics": ["orders", "edits"]}
KINESIS_SOURCE = {"kind": "kinesis", "stream": "orders"}
HomeOf = Callable[..., StackHome]


@pytest.fixture
def home_of(tmp_path: Path) -> HomeOf:
    """Makes a project with one pipeline, so declared."""

    def make(**declared: Any) -> StackHome:
        write_project(tmp_path, declare_pipeline(declare_table("orders"), **declared), lake=Path("/"), relays=[])
        home = StackHome.at(tmp_path / "home", project=tmp_path)
        home.create()
        return home

    return make


def test_the_topics_of_a_pipeline_that_reads_kafka_are_declared(home_of: HomeOf) -> None:
    assert declared_topics(home_of(source=KAFKA_SOURCE)) == ("edits", "orders")


def test_kafka_counts_among_several_sources_only_where_it_is_the_chosen_one(home_of: HomeOf) -> None:
    sources = {"live": KAFKA_SOURCE, "old": KINESIS_SOURCE}

    assert declared_topics(home_of(sources=sources, source="old")) == ()
    assert declared_topics(home_of(sources=sources, source="live")) == ("edits", "orders")


@pytest.mark.parametrize("servers", ["kafka.example:9092", "env:COMPANY_KAFKA", "127.0.0.1:9092"])
def test_topics_of_another_broker_are_not_the_stacks(
    home_of: HomeOf, servers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMPANY_KAFKA", "kafka.example:9092")

    assert declared_topics(home_of(source=KAFKA_SOURCE | {"bootstrap_servers": servers})) == ()


def test_a_pipeline_that_is_declared_wrongly_does_not_keep_the_stack_from_starting(home_of: HomeOf) -> None:
    assert declared_topics(home_of(source=KAFKA_SOURCE, tables="none")) == ()


def test_only_pipelines_that_the_stack_runs_decide(home_of: HomeOf, monkeypatch: pytest.MonkeyPatch) -> None:
    home = home_of(source=KAFKA_SOURCE)
    plain = home.project / "include" / "pipelines" / "plain"
    plain.mkdir()
    declared = yaml.safe_load((home.project / "include" / "pipelines" / "shop" / "pipeline.yaml").read_text())
    plain.joinpath("pipeline.yaml").write_text(
        yaml.safe_dump(declared | {"pipeline": "plain", "source": KINESIS_SOURCE})
    )

    assert declared_topics(home) == declared_topics(home, ["shop"]) == ("edits", "orders")
    assert declared_topics(home, ["plain"]) == ()
    monkeypatch.setenv("DELTAWORKS_PIPELINES", "plain")
    assert declared_topics(home) == ()


def test_the_demo_needs_a_broker_for_engagement_alone(tmp_path: Path) -> None:
    home = StackHome.at(tmp_path / "home")
    topics = {"engagement-activities", "engagement-requests"}

    assert declared_topics(home, demo_settings(None, activities=0).data_settings.pipelines) == ()
    assert topics <= {*declared_topics(home, demo_settings(None).data_settings.pipelines)}
    assert topics <= {*declared_topics(home)}


def test_the_kinesis_streams_that_pipelines_read_from_the_stack_are_declared(home_of: HomeOf) -> None:
    home = home_of(sources={"live": KINESIS_SOURCE, "old": KAFKA_SOURCE}, source="live")
    environment = home.project / "include" / "environments" / "local.yaml"
    elsewhere = declared_streams(home)
    ours = ENVIRONMENT.replace("messaging: {}", 'messaging: {endpoint: "env:DELTAWORKS_AWS_ENDPOINT"}')
    environment.write_text(ours)

    assert elsewhere == ()
    assert declared_streams(home) == ("orders",)
    home_of(source=KAFKA_SOURCE)
    environment.write_text(ours)
    assert declared_streams(home) == ()


def test_buckets_and_streams_that_are_not_there_are_created_once(
    home_of: HomeOf, aws_endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = f"clicks-{aws_endpoint.rpartition(':')[2]}"
    home = home_of(source={"kind": "kinesis", "stream": stream})
    environment = ENVIRONMENT.replace("messaging: {}", 'messaging: {endpoint: "env:DELTAWORKS_AWS_ENDPOINT"}')
    (home.project / "include" / "environments" / "local.yaml").write_text(environment)
    keys = {"access_key": "AKIATEST", "secret_key": "secret"}
    for server in ("LAKE", "AWS"):
        for name, value in {"endpoint": aws_endpoint, **keys}.items():
            monkeypatch.setenv(f"DELTAWORKS_{server}_{name.upper()}", value)
    lines: list[str] = []

    create_sources(home, lines.append)
    create_sources(home, lines.append)

    assert lines == [f"Created Kinesis streams: {stream}"]
    buckets = landing_client("s3", endpoint=aws_endpoint, **keys).list_buckets()["Buckets"]
    assert {bucket["Name"] for bucket in buckets} >= {LAKE_BUCKET, LANDING_BUCKET, PARTNERS_BUCKET, VAULT_BUCKET}


def test_a_stack_without_topics_has_no_broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = StackHome.at(tmp_path / "home")
    home.create()
    jar = tmp_path / "s3proxy.jar"
    monkeypatch.setattr("sandbox.servers.object_store.ensure_jars", lambda: type("Jars", (), {"s3proxy_jar": jar}))
    ports = {"moto": 1, "s3proxy": 2}

    programs = stack_programs(home, ports=ports, keys=load_or_create_secrets(home.secrets_file))

    assert KAFKA not in {program.name for program in programs}


def test_a_stack_has_a_collector_where_it_feeds_a_pipeline_that_runs(
    home_of: HomeOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = home_of(source={"kind": "kinesis", "stream": "orders"})
    assert declared_collector(home) is None
    write_collector(home.project)
    assert declared_collector(home) == "edge"
    assert declared_collector(home, []) is None


def test_the_collector_starts_behind_the_stores_and_ends_before_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = StackHome.at(tmp_path / "home")
    home.create()
    jar = tmp_path / "s3proxy.jar"
    monkeypatch.setattr("sandbox.servers.object_store.ensure_jars", lambda: type("Jars", (), {"s3proxy_jar": jar}))
    ports = {"moto": 1, "s3proxy": 2, "collector": 3, "collector_metrics": 4}

    programs = {
        program.name: program
        for program in stack_programs(
            home, ports=ports, keys=load_or_create_secrets(home.secrets_file), collector="edge"
        )
    }

    command = programs[COLLECTOR].command
    assert command[command.index("collect") + 1] == "edge"
    assert command[command.index("--spool") + 1] == str(home.spool)
    assert home.root in home.spool.parents
    assert all(PROGRAMS.index(COLLECTOR) > PROGRAMS.index(store) for store in STORES)
    ended = [name for group in STOP_ORDER for name in group]
    assert all(ended.index(COLLECTOR) < ended.index(store) for store in STORES)
    assert programs[COLLECTOR].stop_seconds > 20, "it delivers for twenty seconds"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StackHome:
    include = tmp_path / "project" / "include"
    for name in ("cdn_logs", "edits"):
        shutil.copytree(PROJECT_ROOT / "include" / "pipelines" / name, include / "pipelines" / name)
    shutil.copytree(PROJECT_ROOT / "include" / "relays", include / "relays")
    write_project(tmp_path / "project", lake=tmp_path, relays=[])
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    home = StackHome.at(tmp_path / "home", project=tmp_path / "project")
    home.create()
    return home


def test_what_pipelines_look_addresses_up_in_is_put_once(home: StackHome, tmp_path: Path) -> None:
    assert put_sample_databases(home) == (ASN_DATABASE, CITY_DATABASE)
    assert put_sample_databases(home) == ()

    catalog = load_catalog("local", root=home.project)
    assert pin_databases(catalog.pipeline("cdn_logs"), catalog.environment.lake) is not None


def test_a_database_that_somebody_put_stays(home: StackHome, tmp_path: Path) -> None:
    objects = LocalObjects(tmp_path / "lake")
    objects.put(paths.database(CITY_DATABASE), b"of MaxMind")

    assert put_sample_databases(home) == (ASN_DATABASE,)
    assert present(objects.get(paths.database(CITY_DATABASE))).data == b"of MaxMind"


def test_a_stack_whose_pipelines_look_nothing_up_gets_none(home: StackHome, tmp_path: Path) -> None:
    assert put_sample_databases(home, ["edits"]) == ()
    assert not (tmp_path / "lake").exists()
