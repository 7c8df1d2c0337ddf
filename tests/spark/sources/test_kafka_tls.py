"""Kafka over TLS, against a broker whose certificate is signed by a test authority."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from pyspark.sql import SparkSession

from deltaworks.errors import ConfigError
from sandbox.servers.kafka_broker import MECHANISM, BrokerAddress, BrokerLogin, RunningBroker, broker_command
from sandbox.servers.object_store import HOST, free_port
from tests.spark.sources.certificates import Authority
from tests.spark.sources.kafka_harness import ProjectOf, Topic, numbers, run

pytestmark = pytest.mark.integration


@dataclass
class Secured:
    """A broker with a listener in the clear for the test, one with TLS and a login, one that wants a certificate."""

    running: RunningBroker
    authority: Authority
    stranger: Authority
    with_login: str
    with_certificate: str


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder, login = tmp_path_factory.mktemp("tls"), BrokerLogin.generate()
    authority = Authority.new(folder, "authority")
    ports = {name: free_port() for name in ("CONTROLLER", "PLAINTEXT", "SASL_SSL", "SSL")}
    at = {name: f"{HOST}:{port}" for name, port in ports.items()}
    offered = ",".join(f"{name}://{place}" for name, place in at.items() if name != "CONTROLLER")
    settings = {
        "listeners": ",".join(f"{name}://{place}" for name, place in at.items()),
        "advertised.listeners": offered,
        "listener.security.protocol.map": ",".join(
            f"{name}:{'PLAINTEXT' if name == 'CONTROLLER' else name}" for name in at
        ),
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(authority.signed("broker")),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(authority.truststore),
        "listener.name.ssl.ssl.client.auth": "required",
        "sasl.enabled.mechanisms": MECHANISM,
        "listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config": (
            "org.apache.kafka.common.security.scram.ScramLoginModule required;"
        ),
    }
    command = broker_command(
        directory=folder / "kafka",
        port=ports["PLAINTEXT"],
        controller_port=ports["CONTROLLER"],
        properties_file=folder / "server.properties",
        login=login,
        settings=settings,
    )
    running = RunningBroker(command, BrokerAddress(at["PLAINTEXT"], None, login), folder / "output")
    command.prepare()
    running.start()
    yield Secured(running, authority, Authority.new(folder, "stranger"), at["SASL_SSL"], at["SSL"])
    running.stop()


@pytest.fixture
def login(secured: Secured, monkeypatch: pytest.MonkeyPatch) -> Mapping[str, Any]:
    known = secured.running.address.login
    assert known is not None
    monkeypatch.setenv("KAFKA_USER", known.username)
    monkeypatch.setenv("KAFKA_PASSWORD", known.password)
    monkeypatch.setenv("KAFKA_CA", str(secured.authority.truststore))
    names = {"username": "env:KAFKA_USER", "password": "env:KAFKA_PASSWORD"}
    return {"protocol": "SASL_SSL", "mechanism": MECHANISM, **names}


def refusal(spark: SparkSession, project: Any) -> str:
    with pytest.raises(ConfigError) as refused:
        run(spark, project)
    assert (refused.value.condition, refused.value.retryable) == ("SOURCE_CERTIFICATE_REFUSED", False)
    return refused.value.message


def test_a_login_over_tls_with_a_private_authority(
    spark: SparkSession,
    secured: Secured,
    project_of: ProjectOf,
    login: Mapping[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topic = Topic(secured.running, "with_login")
    topic.send(range(10))
    monkeypatch.setenv("KAFKA_CA", str(secured.authority.truststore))
    security = {**login, "truststore": "env:KAFKA_CA"}

    project = project_of(topic.source(security=security, bootstrap_servers=secured.with_login))
    run(spark, project)

    assert numbers(project) == list(range(10))


@pytest.mark.parametrize("trusted", ["another_authority", "those_of_the_jvm"])
def test_brokers_of_an_untrusted_authority_are_rejected_with_a_condition(
    spark: SparkSession,
    secured: Secured,
    project_of: ProjectOf,
    login: Mapping[str, Any],
    trusted: str,
) -> None:
    topic = Topic(secured.running, f"refused_{trusted}")
    topic.send(range(10))
    security = dict(login)
    if trusted == "another_authority":
        security["truststore"] = str(secured.stranger.truststore)

    message = refusal(spark, project_of(topic.source(security=security, bootstrap_servers=secured.with_login)))

    assert "PKIX path" in message


@pytest.mark.parametrize("form", ["PEM", "PKCS12"])
def test_a_client_authenticates_with_its_certificate(
    spark: SparkSession, secured: Secured, project_of: ProjectOf, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    topic = Topic(secured.running, f"with_certificate_{form}")
    topic.send(range(10))
    password = None if form == "PEM" else "opens the store"
    monkeypatch.setenv("KAFKA_CLIENT", str(secured.authority.signed("client", password=password)))
    monkeypatch.setenv("KAFKA_CLIENT_PASSWORD", password or "")
    security = {"protocol": "SSL", "truststore": str(secured.authority.truststore), "keystore": "env:KAFKA_CLIENT"}
    if password:
        security |= {"keystore_type": form, "keystore_password": "env:KAFKA_CLIENT_PASSWORD"}

    project = project_of(topic.source(security=security, bootstrap_servers=secured.with_certificate))
    run(spark, project)

    assert numbers(project) == list(range(10))


@pytest.mark.parametrize("shown", ["none", "of_another_authority"])
def test_a_rejected_client_certificate_is_reported_with_a_condition(
    spark: SparkSession, secured: Secured, project_of: ProjectOf, shown: str
) -> None:
    topic = Topic(secured.running, f"client_{shown}")
    security = {"protocol": "SSL", "truststore": str(secured.authority.truststore)}
    if shown == "of_another_authority":
        security["keystore"] = str(secured.stranger.signed("client"))

    message = refusal(spark, project_of(topic.source(security=security, bootstrap_servers=secured.with_certificate)))

    assert re.search("SslAuthenticationException|SSLHandshakeException", message), "by the broker, not for its store"


def test_a_missing_keystore_is_named_before_any_connection(
    spark: SparkSession, secured: Secured, project_of: ProjectOf, login: Mapping[str, Any]
) -> None:
    topic = Topic(secured.running, "no_store")
    security = {**login, "truststore": str(secured.authority.folder / "absent.pem")}

    with pytest.raises(ConfigError, match=r"absent\.pem does not exist") as missing:
        run(spark, project_of(topic.source(security=security, bootstrap_servers=secured.with_login)))
    assert missing.value.condition == "SOURCE_CERTIFICATE_MISSING"
