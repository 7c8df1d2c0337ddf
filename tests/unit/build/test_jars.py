"""Jars on the class path, and when they are resolved again."""

from __future__ import annotations

import hashlib
import io
import os
import stat
import zipfile
from pathlib import Path

import pytest

from deltaworks.build.jars import (
    artifact_name,
    class_path_names,
    digest_of,
    ensure_broker_jars,
    ensure_jars,
    main,
    read_jar_lock,
    record_digests,
)
from deltaworks.errors import ConfigError, ContractError, TransientError
from deltaworks.specs.catalog import PROJECT_ROOT
from deltaworks.testing import write_files

POM = "<project/>"
#: A Maven that copies what the real one would resolve, and counts its runs.
MAVEN = """#!/bin/sh
echo run >> "$MAVEN_RUNS"
case "$PWD" in
*/broker) mkdir -p ../target/broker/jars && echo k > ../target/broker/jars/kafka_2.13-4.1.0.jar && exit ;;
esac
mkdir -p target/resolved target/s3proxy target/web
cp "$WEB_JAR" target/web/htmx.org-2.0.10.jar
echo x > target/resolved/delta-storage-4.4.0.jar
echo x > target/resolved/slf4j-api-1.0.0.jar
date +%N > target/resolved/deltaworks-jars-0.1.0.jar
echo x > target/s3proxy/s3proxy-4.0.0-jar-with-dependencies.jar
"""
X = "73cb3858a687a8494ca3323053016282f3dad39d42cf62ca4e79dda2aac7d9ac"


def web_jar() -> bytes:
    """A WebJar with a script, with the same bytes each time."""
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        archive.writestr(zipfile.ZipInfo("META-INF/resources/webjars/htmx.org/2.0.10/dist/htmx.min.js"), "var htmx;")
    return data.getvalue()


LOCKED = {
    "delta-storage-4.4.0.jar": X,
    "htmx.org-2.0.10.jar": hashlib.sha256(web_jar()).hexdigest(),
    "s3proxy-4.0.0-jar-with-dependencies.jar": X,
}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    jars = {"pom.xml": POM, "broker/pom.xml": POM, "src/main/java/A.java": "class A {}"}
    write_files(tmp_path, {f"include/jars/{name}": text for name, text in jars.items()} | {"web.jar": web_jar()})
    write_lock(tmp_path, LOCKED)
    monkeypatch.setenv("WEB_JAR", str(tmp_path / "web.jar"))
    monkeypatch.setenv("DELTAWORKS_PROJECT", str(tmp_path))
    monkeypatch.setenv("MAVEN_RUNS", str(tmp_path / "runs"))
    install_maven(tmp_path, monkeypatch, MAVEN)
    return tmp_path


def install_maven(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    command = folder / "bin" / "mvn"
    write_files(folder, {"bin/mvn": script})
    command.chmod(command.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{command.parent}{os.pathsep}{os.environ['PATH']}")


def write_lock(project: Path, digests: dict[str, str]) -> Path:
    path = project / "include" / "jars" / "jars.lock"
    path.write_text("".join(f"{digest}  {name}\n" for name, digest in digests.items()))
    return path


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

    assert {path.name for path in jars.class_path_dir.glob("*.jar")} == {
        "delta-storage-4.4.0.jar",
        "deltaworks-jars-0.1.0.jar",
    }
    assert jars.jar_count == 2
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


def test_a_missing_jar_is_resolved_again(project: Path) -> None:
    jars = ensure_jars()
    next(jars.class_path_dir.glob("*.jar")).unlink()

    assert ensure_jars().jar_count == 2
    assert runs(project) == 2


def test_the_consoles_script_is_extracted_from_its_jar_and_restored_if_missing(project: Path) -> None:
    script = project / "include/deltaworks/console/static/htmx.min.js"
    ensure_jars()
    assert script.read_text() == "var htmx;"
    script.unlink()
    ensure_jars()

    assert script.read_text() == "var htmx;"
    assert runs(project) == 1


def test_a_failing_maven_is_reported_with_its_output(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_maven(project, monkeypatch, "#!/bin/sh\necho 'no such artifact'\nexit 1\n")

    with pytest.raises(TransientError, match="no such artifact") as raised:
        ensure_jars()

    assert raised.value.condition == "JARS_NOT_RESOLVED"


def test_a_missing_java_is_reported_before_maven_runs(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(project / "nowhere"))

    with pytest.raises(ConfigError) as raised:
        ensure_jars()

    assert raised.value.condition == "JAVA_MISSING"
    assert not (project / "runs").exists()


@pytest.mark.parametrize("jar", LOCKED)
def test_a_jar_with_a_different_digest_is_not_put_on_the_class_path(project: Path, jar: str) -> None:
    write_lock(project, {**LOCKED, jar: "0" * 64})

    with pytest.raises(ContractError, match=jar) as raised:
        ensure_jars()

    assert raised.value.condition == "JAR_DIGEST_DIFFERS"
    assert LOCKED[jar] in raised.value.message
    assert not (project / "include" / "jars" / "target" / "jars").exists()


def test_a_jar_missing_in_the_lock_is_rejected(project: Path) -> None:
    write_lock(project, {"delta-storage-4.4.0.jar": X})

    with pytest.raises(ConfigError, match="s3proxy") as raised:
        ensure_jars()

    assert raised.value.condition == "JAR_NOT_LOCKED"
    assert "make jarlock" in raised.value.hint


@pytest.mark.parametrize("text", [None, "abc\n", f"{X} one-space.jar\n", f"{X}  no-jar.txt\n"])
def test_a_missing_or_invalid_lock_is_rejected(project: Path, text: str | None) -> None:
    lock = project / "include" / "jars" / "jars.lock"
    lock.unlink()
    if text is not None:
        lock.write_text(text)

    with pytest.raises(ConfigError) as raised:
        ensure_jars()

    assert raised.value.condition == "JAR_NOT_LOCKED"


def test_a_changed_lock_is_compared_with_the_present_jars(project: Path) -> None:
    ensure_jars()
    write_lock(project, {**LOCKED, "another-1.0.jar": X})
    assert ensure_jars().jar_count == 2
    assert ensure_jars().jar_count == 2
    write_lock(project, {**LOCKED, "delta-storage-4.4.0.jar": "0" * 64})
    with pytest.raises(ContractError, match="JAR_DIGEST_DIFFERS"):
        ensure_jars()

    assert runs(project) == 1


def test_the_brokers_jars_are_verified_too(project: Path) -> None:
    with pytest.raises(ConfigError, match="kafka_") as raised:
        ensure_broker_jars()

    assert raised.value.condition == "JAR_NOT_LOCKED"


def test_a_recorded_lock_has_every_jar_but_the_one_compiled_here(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deltaworks.build.jars.ensure_java_archive", lambda progress: None)
    lock = write_lock(project, {})

    assert main(["--record"]) == 0

    assert set(read_jar_lock(lock).digests) == {*LOCKED, "kafka_2.13-4.1.0.jar"}
    assert next(ensure_broker_jars().glob("*.jar")).name == "kafka_2.13-4.1.0.jar"
    assert record_digests() == lock


def test_the_lock_of_the_project_names_what_is_on_the_class_path_here() -> None:
    folder = PROJECT_ROOT / "include" / "jars" / "target" / "jars"
    lock = read_jar_lock(PROJECT_ROOT / "include" / "jars" / "jars.lock")
    jars = [path for path in folder.glob("*.jar") if not path.name.startswith("deltaworks-jars")]
    if not jars:
        pytest.skip("no jars are resolved here: make jars")

    assert lock.verify(jars) == len(jars)
    assert digest_of(jars[0]) == lock.digests[jars[0].name]
