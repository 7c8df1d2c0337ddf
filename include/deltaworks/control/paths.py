"""Where everything lies in the lake. Nothing else builds a path. Keys are relative to the lake's root."""

from __future__ import annotations


def table(pipeline: str, name: str) -> str:
    """A bronze, live, gold or quarantine table."""
    return f"tables/{pipeline}/{name}"


def relay_control(relay: str, name: str = "") -> str:
    """A relay's control folder, or one thing in it: file_events, message_quarantine, lease.json, ..."""
    return f"control/relays/{relay}/{name}".rstrip("/")


def pipeline_control(pipeline: str, name: str = "") -> str:
    """A pipeline's control folder, or one thing in it: checkpoint_store, progress, lease.json, ..."""
    return f"control/pipelines/{pipeline}/{name}".rstrip("/")


def prepared_batch(pipeline: str, generation: int, batch_id: int) -> str:
    """The object that fixes what a batch writes."""
    return pipeline_control(pipeline, f"prepared/g{generation:06d}/{batch_id:012d}.json")


def checkpoint(pipeline: str, generation: int, ordinal: int) -> str:
    """Spark's checkpoint of the pipeline's ingest query."""
    return pipeline_control(pipeline, f"checkpoints/g{generation:06d}/c{ordinal:04d}")


def reprocess(pipeline: str, name: str) -> str:
    """The plan of a reprocess (`<id>.json`), or one thing in its folder (`<id>/files.json`, `<id>/staging/<table>`)."""
    return pipeline_control(pipeline, f"reprocess/{name}")


def spec_record(pipeline: str, fingerprint: str) -> str:
    """A declaration the stream has started with."""
    return pipeline_control(pipeline, f"specs/{fingerprint}.json")


def current_spec(pipeline: str) -> str:
    """Which declaration the stream last started with."""
    return pipeline_control(pipeline, "specs/current.json")


def accepted_change(pipeline: str, old: str, new: str) -> str:
    """Somebody's word that an unsafe edit is meant; both fingerprints name it."""
    return pipeline_control(pipeline, f"specs/accepted/{old}-{new}.json")


def live_checkpoint(pipeline: str, generation: int, table_name: str) -> str:
    """Spark's checkpoint of a live table's query. It counts what the tables have, so it belongs to a generation."""
    folder = "live" if generation == 1 else f"g{generation:06d}/live"
    return pipeline_control(pipeline, f"checkpoints/{folder}/{table_name}")


def start_over(pipeline: str, generation: int) -> str:
    """The object that fixes how a generation begins. Generation 1 has none."""
    return pipeline_control(pipeline, f"start_over/g{generation:06d}.json")


def start_over_end(pipeline: str, generation: int) -> str:
    """The object that says that a start over is complete."""
    return pipeline_control(pipeline, f"start_over/g{generation:06d}.done.json")


def rollback(pipeline: str, ordinal: int) -> str:
    """The object that fixes what one table is put back to, and what comes back with it."""
    return pipeline_control(pipeline, f"rollbacks/{ordinal:06d}.json")


def rollback_files(pipeline: str, ordinal: int) -> str:
    """The object that names the files of rows that were read again for a rollback."""
    return pipeline_control(pipeline, f"rollbacks/{ordinal:06d}.files.json")


def rollback_end(pipeline: str, ordinal: int) -> str:
    """The object that says that a rollback is complete, and as which version."""
    return pipeline_control(pipeline, f"rollbacks/{ordinal:06d}.done.json")


def held_table(pipeline: str, name: str) -> str:
    """The object that says that a table is held."""
    return pipeline_control(pipeline, f"held/{name}.json")


def requests(pipeline: str) -> str:
    """The folder of what others ask of the stream."""
    return pipeline_control(pipeline, "requests") + "/"


def resume_request(pipeline: str, name: str) -> str:
    """The object that asks the stream to catch a held table up."""
    return f"{requests(pipeline)}resume-{name}.json"


def turn_request(pipeline: str, name: str) -> str:
    """The object that asks for the write turn of a table, and grants it."""
    return f"{requests(pipeline)}turn-{name}.json"


def prepared_replay(pipeline: str, ordinal: int) -> str:
    """The object that fixes what a replay of quarantined rows writes."""
    return pipeline_control(pipeline, f"replays/{ordinal:012d}.json")


def mutations(pipeline: str, name: str = "") -> str:
    """The folder of a pipeline's mutation batches, or one thing in it, such as its lease."""
    return pipeline_control(pipeline, f"mutations/{name}")


def mutation_batch(pipeline: str, number: int) -> str:
    """The object that fixes what a mutation batch covers."""
    return mutations(pipeline, f"{number:012d}.json")


def mutation_end(pipeline: str, number: int) -> str:
    """The object that says that a mutation batch is complete, and what it did."""
    return mutations(pipeline, f"{number:012d}.done.json")


def gold_state(pipeline: str, table_name: str) -> str:
    """The object that says when a gold table was last found to be up to date."""
    return pipeline_control(pipeline, f"gold/{table_name}.json")


def gold_shadows(pipeline: str, table_name: str) -> str:
    """The folder of a gold table's shadows, and of the lock of its refresh."""
    return pipeline_control(pipeline, f"gold_shadows/{table_name}")


def gold_shadow(pipeline: str, table_name: str, ordinal: int) -> str:
    """The table in which a refresh of a gold table is built before it is swapped in."""
    return f"{gold_shadows(pipeline, table_name)}/{ordinal:06d}"


def alerts(name: str = "") -> str:
    """The folder of alerts, or one thing in it: `state/<cause>/<subject>.json`, `spool/<notice>.json`, ..."""
    return f"control/alerts/{name}"


def experiment(name: str, run: str) -> str:
    """The folder of one run of an experiment, which it removes in the end."""
    return f"experiments/{name}-{run}"


def reader(name: str) -> str:
    """The table a reader of changes keeps up to date."""
    return f"readers/{name}"


def reader_records(pipeline: str) -> str:
    """The folder of the words of readers that keep versions of a pipeline's tables."""
    return pipeline_control(pipeline, "readers") + "/"


def reader_record(pipeline: str, table_name: str, reader_name: str) -> str:
    """The word of one reader on one table."""
    return f"{reader_records(pipeline)}{table_name}/{reader_name}.json"


def readers() -> str:
    """The folder of the tables that readers of changes keep."""
    return "readers"


def vacuum_record(pipeline: str) -> str:
    """When each table of a pipeline was last vacuumed by listing its folder."""
    return pipeline_control(pipeline, "maintenance/vacuum.json")


def table_snapshots() -> str:
    """The table of snapshots of tables' health."""
    return "control/table_health"


def table_snapshots_upkeep() -> str:
    """The folder of the lock of whoever keeps the table of snapshots, which all pipelines write to."""
    return "control/table_health_upkeep"
