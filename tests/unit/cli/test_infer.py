"""`deltaworks pipelines infer`, `new` and `land`: from a file to a spec and objects."""

from __future__ import annotations

import gzip
import json
import shlex
from collections import Counter
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from deltaworks.cli import app
from deltaworks.errors import ConfigError, DeltaworksError
from deltaworks.events.chunks import BatchMetadata, Payload
from deltaworks.events.parse import Parser
from deltaworks.specs.project import load_catalog
from deltaworks.testing import write_project
from tests.webhook_events import webhooks


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project on local disk with one relay, no pipelines, and a file of webhooks."""
    write_project(tmp_path)
    webhooks(400).write(tmp_path / "events.jsonl")
    for variable in ("DELTAWORKS_PIPELINES", "DELTAWORKS_ENVIRONMENT"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("DELTAWORKS_PROJECT", str(tmp_path))
    monkeypatch.setenv("DELTAWORKS_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def deltaworks(line: str, *, standard_input: bytes = b"") -> Result:
    result = CliRunner().invoke(app, shlex.split(line), input=standard_input)
    if isinstance(result.exception, DeltaworksError):
        raise result.exception
    return result


def landed_events(project: Path) -> list[bytes]:
    paths = sorted((project / "landing" / "hooks").rglob("*.gz"))
    return [line for path in paths for line in gzip.decompress(path.read_bytes()).splitlines()]


def test_a_pipeline_is_created_from_a_file_with_the_next_commands(project: Path) -> None:
    result = deltaworks("pipelines new hooks --from events.jsonl")

    spec = load_catalog(root=project).pipeline("hooks")
    assert len(spec.tables) == 22
    said = result.output
    assert f"Written: {project}/include/pipelines/hooks/pipeline.yaml" in said
    assert "400 json events were sampled." in said
    assert "type type, time created_at (iso8601), id id; 22 tables." in said
    assert "0 of them would be quarantined." in said
    assert "deltaworks up" in said
    assert "  deltaworks land hooks events.jsonl\n" in said
    assert "FROM hooks.events GROUP BY event_name" in said
    assert deltaworks("pipelines check").exit_code == 0


def test_the_inferred_pipeline_accepts_the_landed_file(project: Path) -> None:
    deltaworks("pipelines infer events.jsonl --write hooks")

    result = deltaworks("land hooks events.jsonl --json")

    (record,) = json.loads(result.stdout)
    assert (record["objects"], record["present"], record["events"], record["unreadable"]) == (1, 0, 400, 0)
    assert landed_events(project) == (project / "events.jsonl").read_bytes().splitlines()
    assert "Follow them: `deltaworks files list landing`, `deltaworks batches hooks`." in result.stderr


def test_landed_events_are_read_into_the_inferred_tables(project: Path) -> None:
    sent = webhooks(2_000, seed=2)
    sent.write(project / "more.jsonl")
    deltaworks("pipelines new hooks --from events.jsonl")
    deltaworks("land hooks more.jsonl --object-mib 1")
    spec = load_catalog(root=project).pipeline("hooks")
    objects = sorted((project / "landing" / "hooks").rglob("*.gz"))
    payloads = [Payload(seq, path.name, gzip.decompress(path.read_bytes())) for seq, path in enumerate(objects)]

    rows: Counter[tuple[str, str]] = Counter()
    for table, part in Parser(spec).parse(payloads, BatchMetadata(batch_id=1, ingested_at_us=0, fingerprint="")):
        rows.update((table, name) for name in part.column("event_name").to_pylist())

    assert len(objects) >= 2
    own = {str(value): table.name for table in spec.tables for value in table.when.get("type", ())}
    wanted = Counter({(own.get(name, "other_events"), name): count for name, count in sent.by_type.items()})
    wanted.update({("events", name): count for name, count in sent.by_type.items()})
    assert rows == wanted


def test_landing_again_reports_existing_objects(project: Path) -> None:
    deltaworks("pipelines new hooks --from events.jsonl")
    deltaworks("land hooks events.jsonl")

    said = deltaworks("land hooks events.jsonl").output

    assert "0 objects landed at landing/hooks/; the files have 400 events." in said
    assert "1 objects already exist with this content" in said
    assert len(landed_events(project)) == 400


def test_standard_input_is_landed(project: Path) -> None:
    deltaworks("pipelines new hooks --from events.jsonl")

    said = deltaworks("land hooks -", standard_input=b'{"a": 1}\n{"a"\n').output

    assert "standard input" in said
    assert "1 values are not events; they will be in `deltaworks quarantine list hooks`." in said
    assert landed_events(project) == [b'{"a": 1}', b'{"a"']


def test_without_a_name_the_spec_is_only_printed(project: Path) -> None:
    result = deltaworks("pipelines infer events.jsonl")

    assert "pipeline: events\n" in result.stdout
    assert "would be quarantined" in result.stderr
    assert not (project / "include" / "pipelines").exists()


def test_an_existing_pipeline_is_not_overwritten(project: Path) -> None:
    deltaworks("pipelines new hooks --from events.jsonl")
    path = project / "include" / "pipelines" / "hooks" / "pipeline.yaml"
    before = path.read_text()

    with pytest.raises(ConfigError) as caught:
        deltaworks("pipelines new hooks --from events.jsonl")

    assert caught.value.condition == "PIPELINE_EXISTS"
    assert path.read_text() == before


def test_a_pipeline_is_created_despite_an_invalid_one(project: Path) -> None:
    broken = project / "include" / "pipelines" / "broken"
    broken.mkdir(parents=True)
    (broken / "pipeline.yaml").write_text("pipeline: [")

    assert "Written" in deltaworks("pipelines new hooks --from events.jsonl").output


def test_an_ambiguous_time_format_must_be_given(project: Path) -> None:
    (project / "visits.csv").write_text("at,page\n03/04/2020 14:05,/\n")
    line = "pipelines new visits --from visits.csv --time at --time-format "

    result = deltaworks(line + '"%d/%m/%Y %H:%M"')

    assert "time at (%d/%m/%Y %H:%M)" in result.output
    assert load_catalog(root=project).pipeline("visits").event.time.format == "%d/%m/%Y %H:%M"
    assert "dd/MM/yyyy' has no strptime directive" in deltaworks(line + "dd/MM/yyyy").output
    assert "--time-format needs --time" in deltaworks("pipelines infer visits.csv --time-format %d/%m/%Y").output


@pytest.mark.usefixtures("project")
def test_an_invalid_name_is_rejected() -> None:
    result = deltaworks("pipelines new My-Hooks --from events.jsonl")

    assert result.exit_code == 2
    assert "lower-case letters" in result.output
