"""Spark settings: no secret on a command line, a safe log store for a shared lake, and the archive of Java classes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from deltaworks.errors import ConfigError
from deltaworks.specs.environment import EnvironmentSpec
from deltaworks.specs.spark_conf import (
    AUTHENTICATION_SETTINGS,
    LOG_STORE_S3A,
    S3A_LOG_STORE_KEY,
    SPARK_SECRET_KEY,
    check_log_store,
    check_master,
    java_archive,
    java_archive_manifest,
    java_archive_options,
    session_conf,
    submit_conf,
)

SECRETS = {"TEST_ACCESS_KEY": "hidden-access", "TEST_SECRET_KEY": "hidden-secret", "TEST_SPARK": "hidden-cluster"}


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
            "spark": {
                "driver_memory": "2g",
                "conf": {"spark.executor.memory": "3g"},
                "protected": True,
                "secret": "env:TEST_SPARK",
            },
        }
    )


def test_command_lines_contain_no_secret(environment: EnvironmentSpec) -> None:
    conf = submit_conf(environment, Path("/checkout"))

    assert conf["spark.driver.memory"] == "2g"
    for name, value in conf.items():
        assert "hidden" not in value
        assert "fs.s3a" not in name


def test_a_driver_has_one_garbage_collector_chosen_by_its_environment(environment: EnvironmentSpec) -> None:
    def collectors(java_options: str) -> list[str]:
        spark = environment.spark.model_copy(update={"java_options": java_options})
        conf = submit_conf(environment.model_copy(update={"spark": spark}), Path("/checkout"))
        return re.findall(r"-XX:\+Use(\w+)GC", conf["spark.driver.extraJavaOptions"])

    assert collectors("-XX:+UseStringDeduplication") == ["G1"]
    assert collectors("-XX:+UseSerialGC -Xmn256m") == ["Serial"]


def test_the_session_gets_the_keys_of_both_storages(environment: EnvironmentSpec) -> None:
    conf = session_conf(environment)

    for bucket in ("lake", "landing"):
        assert conf[f"spark.hadoop.fs.s3a.bucket.{bucket}.access.key"] == "hidden-access"
        assert conf[f"spark.hadoop.fs.s3a.bucket.{bucket}.secret.key"] == "hidden-secret"


def test_every_setting_with_a_secret_is_redacted(environment: EnvironmentSpec) -> None:
    import re

    conf = session_conf(environment)
    redacted = re.compile(conf["spark.redaction.regex"])

    leaking = [name for name, value in conf.items() if value in SECRETS.values() and not redacted.search(name)]
    assert not leaking
    assert not redacted.search("spark.sql.shuffle.partitions")


def test_an_environments_own_settings_take_precedence(environment: EnvironmentSpec) -> None:
    assert session_conf(environment)["spark.executor.memory"] == "3g"


def test_deltaworks_own_settings_are_safe_on_a_shared_lake(environment: EnvironmentSpec) -> None:
    conf = session_conf(environment)

    check_log_store(conf, shared=True)

    assert conf[S3A_LOG_STORE_KEY] == LOG_STORE_S3A


@pytest.mark.parametrize("matched", [None, "org.apache.spark.sql.delta.storage.S3SingleDriverLogStore"])
def test_a_shared_lake_without_a_safe_log_store_is_rejected(matched: str | None) -> None:
    conf = {} if matched is None else {S3A_LOG_STORE_KEY: matched}

    with pytest.raises(ConfigError) as caught:
        check_log_store(conf, shared=True)

    assert caught.value.condition == "LOG_STORE_UNSAFE"
    assert LOG_STORE_S3A in caught.value.hint


def test_a_lake_on_local_disk_needs_no_log_store_for_s3() -> None:
    with pytest.raises(ConfigError, match="LOG_STORE_UNSAFE"):
        check_log_store({}, shared=True)

    assert check_log_store({}, shared=False) is None  # type: ignore[func-returns-value]


def test_a_protected_environment_authenticates_and_encrypts_from_the_command_line_on(
    environment: EnvironmentSpec,
) -> None:
    protection = {name: value for name, (value, _) in AUTHENTICATION_SETTINGS.items()}
    submitted, of_session = submit_conf(environment, Path("/checkout")), session_conf(environment)

    # YARN and Kubernetes make the secret at submission, which has to know.
    assert protection.items() <= submitted.items()
    assert protection.items() <= of_session.items()
    assert SPARK_SECRET_KEY not in submitted
    assert of_session[SPARK_SECRET_KEY] == "hidden-cluster"


def with_spark(environment: EnvironmentSpec, **spark: object) -> EnvironmentSpec:
    return EnvironmentSpec.model_validate({**environment.model_dump(exclude={"spark"}), "spark": spark})


@pytest.mark.parametrize(("spark", "missing"), [({}, "spark.protected"), ({"protected": True}, "spark.secret")])
def test_a_standalone_master_needs_an_explicit_protection(
    environment: EnvironmentSpec, spark: dict[str, object], missing: str
) -> None:
    with pytest.raises(ConfigError, match=missing) as caught:
        check_master(with_spark(environment, **spark), "spark://spark-master:7077")

    assert caught.value.condition == "SPARK_UNPROTECTED"
    assert "tests.yaml" in caught.value.message


def is_rejected(environment: EnvironmentSpec, master: str) -> bool:
    try:
        check_master(environment, master)
    except ConfigError:
        return True
    return False


@pytest.mark.parametrize("master", ["local[2]", "yarn", "k8s://https://kubernetes.default"])
def test_other_masters_generate_a_secret_or_need_none(environment: EnvironmentSpec, master: str) -> None:
    assert not is_rejected(with_spark(environment, protected=True), master)
    assert not is_rejected(with_spark(environment), master)


def test_a_standalone_master_can_be_explicitly_unprotected(environment: EnvironmentSpec) -> None:
    assert not is_rejected(with_spark(environment, protected=False), "spark://127.0.0.1:7077")
    assert not is_rejected(environment, "spark://127.0.0.1:7077")
    assert is_rejected(with_spark(environment), "spark://127.0.0.1:7077")


def test_a_secret_of_an_unprotected_cluster_is_an_error(environment: EnvironmentSpec) -> None:
    with pytest.raises(ValueError, match="protected: true"):
        with_spark(environment, secret="env:TEST_SPARK")


def _archive(root: Path, *, size: int, recorded: object) -> Path:
    archive = java_archive(root)
    archive.parent.mkdir(parents=True)
    archive.write_bytes(b"x" * size)
    java_archive_manifest(root).write_text(json.dumps(recorded))
    return archive


def test_a_complete_archive_is_mapped_and_silently_ignored_on_a_mismatch(tmp_path: Path) -> None:
    archive = _archive(tmp_path, size=10, recorded={"bytes": 10})

    options = java_archive_options(tmp_path).split()

    assert f"-XX:SharedArchiveFile={archive}" in options
    assert "-Xlog:cds*=off" in options


def test_without_an_archive_there_are_no_jvm_options(tmp_path: Path) -> None:
    assert java_archive_options(tmp_path) == ""


@pytest.mark.parametrize("recorded", [{"bytes": 11}, {}, [], "text", {"bytes": None}])
def test_a_truncated_class_archive_is_not_used(tmp_path: Path, recorded: object) -> None:
    _archive(tmp_path, size=10, recorded=recorded)

    assert java_archive_options(tmp_path) == ""


def test_a_linked_checkout_uses_the_archive_of_the_folder_it_leads_to(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    archive = _archive(tmp_path / "real", size=10, recorded={"bytes": 10})
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / "include").symlink_to(tmp_path / "real" / "include")

    assert f"-XX:SharedArchiveFile={archive} " in java_archive_options(tmp_path / "linked")
