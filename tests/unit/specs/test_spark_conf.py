"""Spark's settings: no secret on a command line, no shared lake without the log store."""

from __future__ import annotations

from pathlib import Path

import pytest

from deltaworks.errors import ConfigError
from deltaworks.specs.environment import EnvironmentSpec
from deltaworks.specs.spark_conf import LOG_STORE_S3A, S3A_LOG_STORE_KEY, check_log_store, session_conf, submit_conf

SECRETS = {"TEST_ACCESS_KEY": "hidden-access", "TEST_SECRET_KEY": "hidden-secret"}


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> EnvironmentSpec:
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    keys = {"access_key": "env:TEST_ACCESS_KEY", "secret_key": "env:TEST_SECRET_KEY"}
    return EnvironmentSpec.model_validate(
        {
            "environment": "tests",
            "lake": {"root": "s3://lake", **keys},
            "landing": {"root": "s3://landing", **keys},
            "messaging": keys,
            "spark": {"driver_memory": "2g", "conf": {"spark.executor.memory": "3g"}},
        }
    )


def test_what_ends_on_a_command_line_holds_no_secret(environment: EnvironmentSpec) -> None:
    conf = submit_conf(environment, Path("/checkout"))

    assert conf["spark.driver.memory"] == "2g"
    for name, value in conf.items():
        assert "hidden" not in value
        assert "fs.s3a" not in name


def test_the_session_gets_the_keys_of_both_storages(environment: EnvironmentSpec) -> None:
    conf = session_conf(environment)

    for bucket in ("lake", "landing"):
        assert conf[f"spark.hadoop.fs.s3a.bucket.{bucket}.access.key"] == "hidden-access"
        assert conf[f"spark.hadoop.fs.s3a.bucket.{bucket}.secret.key"] == "hidden-secret"


def test_every_setting_that_holds_a_secret_is_redacted(environment: EnvironmentSpec) -> None:
    import re

    conf = session_conf(environment)
    redacted = re.compile(conf["spark.redaction.regex"])

    leaking = [name for name, value in conf.items() if value in SECRETS.values() and not redacted.search(name)]
    assert not leaking
    assert not redacted.search("spark.sql.shuffle.partitions")


def test_an_environments_own_settings_win(environment: EnvironmentSpec) -> None:
    assert session_conf(environment)["spark.executor.memory"] == "3g"


def test_deltaworks_own_settings_are_safe_on_a_shared_lake(environment: EnvironmentSpec) -> None:
    conf = session_conf(environment)

    check_log_store(conf, shared=True)

    assert conf[S3A_LOG_STORE_KEY] == LOG_STORE_S3A


@pytest.mark.parametrize("found", [None, "org.apache.spark.sql.delta.storage.S3SingleDriverLogStore"])
def test_a_shared_lake_without_our_log_store_is_refused(found: str | None) -> None:
    conf = {} if found is None else {S3A_LOG_STORE_KEY: found}

    with pytest.raises(ConfigError) as caught:
        check_log_store(conf, shared=True)

    assert caught.value.condition == "LOG_STORE_UNSAFE"
    assert LOG_STORE_S3A in caught.value.hint


def test_a_lake_on_local_disk_needs_no_log_store_for_s3() -> None:
    with pytest.raises(ConfigError, match="LOG_STORE_UNSAFE"):
        check_log_store({}, shared=True)

    assert check_log_store({}, shared=False) is None  # type: ignore[func-returns-value]
