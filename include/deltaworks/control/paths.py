"""Where everything lies in the lake. Nothing else builds a path. Keys are relative to the lake's root."""

from __future__ import annotations


def table(pipeline: str, name: str) -> str:
    """A bronze, live, gold or quarantine table."""
    return f"tables/{pipeline}/{name}"


def database(name: str) -> str:
    """A database that events are enriched from, which people put there."""
    return f"databases/{name}"


def relay_control(relay: str, name: str = "") -> str:
    """A relay's control folder, or one thing in it: file_events, message_quarantine, lease.json, ..."""
    return f"control/relays/{relay}/{name}".rstrip("/")


def pipeline_control(pipeline: str, name: str = "") -> str:
    """A pipeline's control folder, or one thing in it: checkpoint_store, progress, lease.json, ..."""
    return f"control/pipelines/{pipeline}/{name}".rstrip("/")


def group_control(group: str) -> str:
    """The control folder of a group of streams, of which most is in those of its pipelines."""
    return f"control/stream_groups/{group}"


def prepared_batch(pipeline: str, generation: int, batch_id: int) -> str:
    """The object that fixes what a batch writes."""
    return pipeline_control(pipeline, f"prepared/g{generation:06d}/{batch_id:012d}.json")


def batch_crashes(pipeline: str, generation: int, batch_id: int) -> str:
    """The folder of what is on record of a batch that tasks die on, until it is prepared."""
    return pipeline_control(pipeline, f"deaths/g{generation:06d}/{batch_id:012d}")


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


def start_over_completion(pipeline: str, generation: int) -> str:
    """The object that says that a start over is complete."""
    return pipeline_control(pipeline, f"start_over/g{generation:06d}.done.json")


def rollback(pipeline: str, ordinal: int) -> str:
    """The object that fixes what one table is put back to, and what comes back with it."""
    return pipeline_control(pipeline, f"rollbacks/{ordinal:06d}.json")


def rollback_files(pipeline: str, ordinal: int) -> str:
    """The object that names the files of rows that were read again for a rollback."""
    return pipeline_control(pipeline, f"rollbacks/{ordinal:06d}.files.json")


def rollback_completion(pipeline: str, ordinal: int) -> str:
    """The object that says that a rollback is complete, and as which version."""
    return pipeline_control(pipeline, f"rollbacks/{ordinal:06d}.done.json")


def approval(pipeline: str, name: str) -> str:
    """The object that says what was asked of a person about an operation in one run, and what they answered."""
    return pipeline_control(pipeline, f"approvals/{name}.json")


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
    """The folder of a pipeline's mutation batches, or one thing in it."""
    return pipeline_control(pipeline, f"mutations/{name}")


def mutation_batch(pipeline: str, number: int) -> str:
    """The object that fixes what a mutation batch covers."""
    return mutations(pipeline, f"{number:012d}.json")


def mutation_completion(pipeline: str, number: int) -> str:
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


def announced_view(pipeline: str, view: str) -> str:
    """What was published last of a view's answers: its number and a digest."""
    return pipeline_control(pipeline, f"announced_views/{view}.json")


def model_runs(pipeline: str, name: str, number: int | None = None) -> str:
    """The folder of the trainings of a model; with a number the object that says what that one came to."""
    return f"models/{pipeline}/{name}/" + ("" if number is None else f"{number}/manifest.json")


def alerts(name: str = "") -> str:
    """The folder of alerts, or one thing in it: `state/<cause>/<subject>.json`, `spool/<notification>.json`, ..."""
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
    return maintenance(pipeline, "vacuum.json")


def first_maintenance(pipeline: str) -> str:
    """When the upkeep of a pipeline first came by, and whether its tables were new then."""
    return maintenance(pipeline, "first_night.json")


def table_snapshots() -> str:
    """The table of snapshots of tables' health."""
    return "control/table_health"


def table_snapshots_maintenance() -> str:
    """The folder of the lock of whoever keeps the table of snapshots, which all pipelines write to."""
    return "control/table_health_upkeep"


def generations(pipeline: str) -> str:
    """The object that says which generation and checkpoint the ingest query is at."""
    return pipeline_control(pipeline, "generations.json")


def staging(pipeline: str, table_name: str) -> str:
    """The folder of rows that Spark hands over to the writer of one table as files."""
    return pipeline_control(pipeline, f"staging/{table_name}")


def checkpoint_store(pipeline: str) -> str:
    """The ledger's table of batches."""
    return pipeline_control(pipeline, "checkpoint_store")


def batch_metadata_store(pipeline: str) -> str:
    """The ledger's table of what each batch did to each table."""
    return pipeline_control(pipeline, "batch_metadata_store")


def quarantine_replays(pipeline: str) -> str:
    """The table of quarantined rows that were replayed."""
    return pipeline_control(pipeline, "quarantine_replays")


def progress(pipeline: str) -> str:
    """The table of what each batch took and carried."""
    return pipeline_control(pipeline, "progress")


def zorder_ledger(pipeline: str) -> str:
    """The table of the files that OPTIMIZE has ordered."""
    return pipeline_control(pipeline, "zorder_ledger")


def zorder_group(pipeline: str, writer: str) -> str:
    """The object that says which files a writer is ordering."""
    return maintenance(pipeline, f"group-{writer}.json")


def maintenance(pipeline: str, name: str = "") -> str:
    """The folder of a pipeline's upkeep, or one thing in it, such as its lease."""
    return pipeline_control(pipeline, f"maintenance/{name}").rstrip("/")


def input_rate(pipeline: str) -> str:
    """The object that says how much a pipeline usually gets."""
    return pipeline_control(pipeline, "input_norm.json")


def throughput(control: str) -> str:
    """The object that says what the stream of a control folder has read lately."""
    return f"{control}/throughput.json"


def kafka_topic(pipeline: str, generation: int, topic: str) -> str:
    """The object that fixes which topic of this name a generation reads."""
    return pipeline_control(pipeline, f"kafka/g{generation:06d}/{topic}.json")


def kinesis_state(pipeline: str, generation: int) -> str:
    """The folder of what the shards' readers of a generation note."""
    return pipeline_control(pipeline, f"kinesis/g{generation:06d}")


def reprocess_staging(pipeline: str, reprocess_id: str, table_name: str = "") -> str:
    """The folder of rows that a reprocess has read again, or that of one table."""
    return reprocess(pipeline, f"{reprocess_id}/staging/{table_name}")


def specs(pipeline: str) -> str:
    """The folder of declarations a stream has started with."""
    return pipeline_control(pipeline, "specs") + "/"


def relay_listing(relay: str) -> str:
    """The object that says how far a relay's listing of its bucket is."""
    return relay_control(relay, "listing.json")


def relay_listing_request(relay: str) -> str:
    """The object that asks a relay to list its bucket."""
    return relay_control(relay, "listing_request.json")


def relay_cleanup(relay: str) -> str:
    """The object that says what was last cleaned of a relay's bucket."""
    return relay_control(relay, "clean.json")


def alert_state(cause: str, subject: str) -> str:
    """The object of one alert."""
    return alerts(f"state/{cause}/{subject}.json")


def health_verdicts() -> str:
    """The object with what the health check last found of every relay and stream."""
    return alerts("verdicts.json")


def alert_notification(notification: str) -> str:
    """A notification that waits to be sent."""
    return alerts(f"spool/{notification}.json")


def alert_delivery(notification: str, channel: str) -> str:
    """The object that says whether a notification was sent through a channel."""
    return alerts(f"deliveries/{notification}.{channel}.json")


def alert_job(dag_id: str) -> str:
    """The object that says since when a job's runs have failed."""
    return alerts(f"jobs/{dag_id}.json")


def lease(folder: str) -> str:
    """The lease of whoever works in a control folder: a stream, a relay, a run of maintenance."""
    return f"{folder}/lease.json"


def heartbeat(folder: str) -> str:
    """The object in which the stream or the relay of a control folder says how it is."""
    return f"{folder}/heartbeat.json"


def stop_request(folder: str) -> str:
    """The object that asks the stream or the relay of a control folder to stop."""
    return f"{folder}/stop.json"


def stream_lease(pipeline: str) -> str:
    """The lease of a pipeline's stream."""
    return lease(pipeline_control(pipeline))
