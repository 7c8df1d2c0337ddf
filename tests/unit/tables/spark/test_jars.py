"""Which jars make the class path, and when the set is built again."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from deltaworks.errors import ConfigError, TransientError
from deltaworks.tables.spark.jars import artifact_name, class_path_names, ensure_jars

POM = "<project/>"
#: A Maven that copies what the real one would resolve, and counts its runs.
MAVEN = """#!/bin/sh
echo run >> "$MAVEN_RUNS"
mkdir -p target/resolved target/s3proxy
echo x > target/resolved/delta-storage-4.4.0.jar
echo x > target/resolved/slf4j-api-1.0.0.jar
echo x > target/s3proxy/s3proxy-4.0.0-jar-with-dependencies.jar
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    source = tmp_path / "include" / "jars" / "src" / "main" / "java"
    source.mkdir(parents=True)
    (tmp_path / "include" / "jars" / "pom.xml").write_text(POM)
    (source / "A.java").write_text("class A {}")
    monkeypatch.setenv("DELTAWORKS_PROJECT", str(tmp_path))
    monkeypatch.setenv("MAVEN_RUNS", str(tmp_path / "runs"))
    install_maven(tmp_path, monkeypatch, MAVEN)
    return tmp_path


def install_maven(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    command = folder / "bin" / "mvn"
    command.parent.mkdir(exist_ok=True)
    command.write_text(script)
    command.chmod(command.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{command.parent}{os.pathsep}{os.environ['PATH']}")


def runs(project: Path) -> int:
    return len((project / "runs").read_text().splitlines())


@pytest.mark.parametrize(
    ("jar", "artifact"),
    [
        ("delta-spark_4.2_2.13-4.4.0.jar", "delta-spark_4.2_2.13"),
        ("spark-sql-kafka-0-10_2.13-4.2.0.jar", "spark-sql-kafka-0-10_2.13"),
        ("netty-transport-native-epoll-4.2.13.Final-linux-x86_64.jar", "netty-transport-native-epoll"),
        ("s3-2.35.4.jar", "s3"),
    ],
)
def test_an_artifact_is_a_jar_without_version_and_classifier(jar: str, artifact: str) -> None:
    assert artifact_name(jar) == artifact


def test_a_jar_that_pyspark_ships_in_any_version_stays_off_the_class_path() -> None:
    resolved = ["s3-2.35.4.jar", "kafka-clients-3.9.2.jar", "slf4j-api-2.0.17.jar"]

    assert class_path_names(resolved, ["slf4j-api-2.0.9.jar"]) == ["kafka-clients-3.9.2.jar", "s3-2.35.4.jar"]


def test_the_set_holds_what_maven_resolved_without_what_pyspark_ships(project: Path) -> None:
    jars = ensure_jars()

    assert {path.name for path in jars.class_path_dir.glob("*.jar")} == {"delta-storage-4.4.0.jar"}
    assert (jars.jar_count, jars.bytes) == (1, 2)
    assert jars.s3proxy_jar.exists()


def test_a_second_call_runs_no_maven(project: Path) -> None:
    first = ensure_jars()

    assert ensure_jars() == first
    assert runs(project) == 1


@pytest.mark.parametrize("changed", ["pom.xml", "src/main/java/A.java"])
def test_a_changed_pom_or_source_builds_again(project: Path, changed: str) -> None:
    ensure_jars()
    with (project / "include" / "jars" / changed).open("a") as file:
        file.write("\n")

    ensure_jars()

    assert runs(project) == 2


def test_a_jar_that_is_gone_is_resolved_again(project: Path) -> None:
    jars = ensure_jars()
    next(jars.class_path_dir.glob("*.jar")).unlink()

    assert ensure_jars().jar_count == 1
    assert runs(project) == 2


def test_a_failing_maven_is_said_with_its_output(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_maven(project, monkeypatch, "#!/bin/sh\necho 'no such artifact'\nexit 1\n")

    with pytest.raises(TransientError, match="no such artifact") as raised:
        ensure_jars()

    assert raised.value.condition == "JARS_NOT_RESOLVED"


def test_a_missing_java_is_said_before_maven_runs(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(project / "nowhere"))

    with pytest.raises(ConfigError) as raised:
        ensure_jars()

    assert raised.value.condition == "JAVA_MISSING"
    assert not (project / "runs").exists()
