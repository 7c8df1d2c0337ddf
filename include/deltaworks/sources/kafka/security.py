"""How a Kafka client proves who it is and whom it talks to, as properties of Kafka's Java clients."""

from __future__ import annotations

from pathlib import Path

from deltaworks.errors import ConfigError
from deltaworks.specs.base import Reference, resolve_text
from deltaworks.specs.sources.kafka import KafkaSecuritySpec

_LOGIN = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}


def client_properties(security: KafkaSecuritySpec) -> dict[str, str]:
    """What a client is configured with. Holds secrets.

    As options of Spark's source they begin with `kafka.`, and Spark's settings of redaction keep them out of plans and
    pages.

    Raises:
        ConfigError: REFERENCE_UNRESOLVED; SOURCE_CERTIFICATE_MISSING, a truststore or keystore is no file here.
    """
    properties: dict[str, str] = {"security.protocol": security.protocol}
    if security.mechanism and security.username and security.password:
        properties["sasl.mechanism"] = security.mechanism
        login = f"username={_quoted(security.username.resolve())} password={_quoted(security.password.resolve())}"
        properties["sasl.jaas.config"] = f"{_LOGIN[security.mechanism]} required {login};"
    if security.truststore is not None:
        properties["ssl.truststore.location"] = _file("truststore", security.truststore)
        properties["ssl.truststore.type"] = security.truststore_type
    if security.keystore is not None:
        properties["ssl.keystore.location"] = _file("keystore", security.keystore)
        properties["ssl.keystore.type"] = security.keystore_type
    secrets = {
        "ssl.truststore.password": security.truststore_password,
        "ssl.keystore.password": security.keystore_password,
        "ssl.key.password": security.key_password,
    }
    return properties | {name: secret.resolve() for name, secret in secrets.items() if secret is not None}


def _file(name: str, declared: Reference | str) -> str:
    place = resolve_text(declared)
    if not Path(place).is_file():
        raise ConfigError(
            "SOURCE_CERTIFICATE_MISSING",
            f"source.security.{name}: {place} is no file on this machine.",
            hint="Put it there, for the driver and for every worker, or mend the path.",
        )
    return place


def _quoted(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
