"""Specs of collectors: errors have file, line, key and advice."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from deltaworks.errors import ConfigError
from deltaworks.specs.catalog import PROJECT_ROOT
from deltaworks.specs.checks.project import check_project
from deltaworks.specs.collector_file import load_collector
from deltaworks.specs.project import load_catalog

PAGE = PROJECT_ROOT / "docs" / "reference/collector-protocol.md"
DECLARATION = (
    """\
collector: edge
listen: {port: 8090, trusted_hops: 1}
spool: {max_bytes: 10GiB, ack: spool}
sources:
  games:
    pipeline: games
    keys:
      - {sha256: FIRST, until: 2027-01-31}
      - {sha256: SECOND}
    origins: ["https://play.example.org"]
    rate: {events_per_second: 5000, burst: 20000}
    sink: {kind: landing, prefix: games/, close_bytes: 8MiB, close_seconds: 60}
  web:
    pipeline: games
    keys: [{sha256: THIRD}]
    sink: {kind: landing}
""".replace("FIRST", "a" * 64)
    .replace("SECOND", "b" * 64)
    .replace("THIRD", "c" * 64)
)


def project(folder: Path, declaration: str) -> Path:
    (folder / "include" / "pipelines" / "games").mkdir(parents=True)
    (folder / "include" / "collectors").mkdir()
    (folder / "include" / "pipelines" / "games" / "pipeline.yaml").touch()
    (folder / "include" / "collectors" / "edge.yaml").write_text(declaration)
    return folder


@pytest.mark.parametrize(
    ("right", "invalid", "line", "messages"),
    [
        ("max_bytes", "max_byte", 3, "spool.max_byte: unknown key 'max_byte'; did you mean 'max_bytes'?"),
        ("pipeline: games\n    keys:\n", "pipeline: gamess\n    keys:\n", 6, "did you mean 'games'?"),
        ("kind: landing, ", "kind: landin, ", 12, "did you mean 'landing'?"),
        ("a" * 64, "my-secret-key", 8, "write the SHA-256 of the key as 64 hexadecimal digits"),
        ("c" * 64, "A" * 64, 15, "the source 'games' already has this key"),
        ("b" * 64, "a" * 64, 9, "the source 'games' already has this key"),
        ("example.org", "example.org/page", 10, "write an origin as browsers send it"),
        ("collector: edge", "collector: other", 1, "the file is named 'edge'"),
        ("trusted_hops: 1", "trusted_hops: many", 2, "write a whole number instead of 'many'"),
        ("until: 2027-01-31", "until: soon", 8, "sources.games.keys.0.until"),
        ("10GiB", "10GB", 3, "write a number of bytes"),
    ],
)
def test_an_error_has_its_line_and_advice(tmp_path: Path, right: str, invalid: str, line: int, messages: str) -> None:
    assert right in DECLARATION
    root = project(tmp_path, DECLARATION.replace(right, invalid, 1))

    with pytest.raises(ConfigError) as caught:
        load_collector("edge", root=root)

    assert caught.value.condition == "SPEC_INVALID"
    assert f"edge.yaml:{line}: " in caught.value.message
    assert messages in caught.value.message


def test_limits_below_what_sdks_send_are_refused(tmp_path: Path) -> None:
    root = project(tmp_path, DECLARATION + "limits: {max_body_bytes: 1MiB}\n")

    with pytest.raises(ConfigError, match=r"edge.yaml:17: limits.max_body_bytes"):
        load_collector("edge", root=root)


def test_an_unknown_collector_is_rejected_with_the_closest_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load_collector("egde", root=project(tmp_path, DECLARATION))

    assert (caught.value.condition, caught.value.hint) == ("COLLECTOR_UNKNOWN", "Did you mean 'edge'?")


def test_a_key_is_valid_until_the_end_of_its_last_day(tmp_path: Path) -> None:
    first, second = load_collector("edge", root=project(tmp_path, DECLARATION)).sources["games"].keys
    end = 1_801_440_000  # 2027-02-01T00:00:00Z

    assert (first.is_valid_at(end - 1), first.is_valid_at(end)) == (True, False)
    assert second.is_valid_at(end)


def test_the_collectors_of_this_project_are_valid_and_in_its_catalog() -> None:
    catalog = load_catalog()

    assert "edge" in catalog.collectors
    assert catalog.collector("edge").sources["games"].pipeline == "games"
    assert [spec_error for spec_error in check_project().errors if "collectors" in str(spec_error.file)] == []


def test_the_example_in_the_docs_is_valid(tmp_path: Path) -> None:
    [declaration] = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)

    assert load_collector("edge", root=project(tmp_path, declaration)).sources["web"].rate is not None


def test_every_key_of_a_collector_is_on_the_page() -> None:
    from deltaworks.specs.collector import CollectorSpec

    names = set(
        re.findall(r"[a-z_0-9]+", PAGE.read_text() + (PAGE.parent.parent / "how-to/collect-over-http.md").read_text())
    )
    schema = CollectorSpec.model_json_schema()
    keys = {key for model in [schema, *schema["$defs"].values()] for key in model.get("properties", {})}

    assert keys - names - {"scheme", "name"} == set()
