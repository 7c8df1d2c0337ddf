"""Keys of all tables and control objects, relative to the lake's root. No other module builds a path."""

from __future__ import annotations


def table(pipeline: str, name: str) -> str:
    """Returns the key of a bronze, live, gold or quarantine table."""
    return f"tables/{pipeline}/{name}"


def database(name: str) -> str:
    """Returns the key of an enrichment database, which people upload."""
    return f"databases/{name}"


def relay_control(relay: str, name: str = "") -> str:
    """Returns a relay's control folder, or one key in it: file_events, message_quarantine, lease.json, ..."""
    return f"control/relays/{relay}/{name}".rstrip("/")


def pipeline_control(pipeline: str, name: str = "") -> str:
    """Returns a pipeline's control folder, or one key in it: checkpoint_store, progress, lease.json, ..."""
    return f"control/pipelines/{pipeline}/{name}".rstrip("/")


def group_control(group: str) -> str:
    """Returns the control folder of a stream group. Most state is in the folders of its pipelines."""
    return f"control/stream_groups/{group}"


def prepared_batch(pipeline: str, generation: int, batch_id: int) -> str:
    """Returns the key of a prepared batch: the record of the files to commit."""
    return pipeline_control(pipeline, f"prepared/g{generation:06d}/{batch_id:012d}.json")


def batch_crashes(pipeline: str, generation: int, batch_id: int) -> str:
    """Returns the folder of worker-crash records of a batch, until the batch is prepared."""
    return pipeline_control(pipeline, f"crashes/g{generation:06d}/{batch_id:012d}")


def checkpoint(pipeline: str, generation: int, ordinal: int) -> str:
    """Returns the folder of Spark's checkpoint of the pipeline's ingest query."""
    return pipeline_control(pipeline, f"checkpoints/g{generation:06d}/c{ordinal:04d}")


def reprocess(pipeline: str, name: str) -> str:
    """Returns the key of the plan of a reprocess (`<id>.json`), or one key in its folder (`<id>/files.json`,
    `<id>/staging/<table>`).
    """
    return pipeline_control(pipeline, f"reprocess/{name}")


def spec_record(pipeline: str, fingerprint: str) -> str:
    """Returns the key of a spec that the stream has started with."""
    return pipeline_control(pipeline, f"specs/{fingerprint}.json")


def current_spec(pipeline: str) -> str:
    """Returns the key of the fingerprint of the spec that the stream last started with."""
    return pipeline_control(pipeline, "specs/current.json")


def accepted_change(pipeline: str, old: str, new: str) -> str:
    """Returns the key of the acceptance of an unsafe change between the two specs with these fingerprints."""
    return pipeline_control(pipeline, f"specs/accepted/{old}-{new}.json")


def live_checkpoint(pipeline: str, generation: int, table_name: str) -> str:
    """Returns the folder of Spark's checkpoint of a live table's query. It refers to table versions, so it belongs to
    one generation.
    """
    return pipeline_control(pipeline, f"checkpoints/g{generation:06d}/live/{table_name}")


def start_over(pipeline: str, generation: int) -> str:
    """Returns the key of the record of a start-over. Generation 1 has none."""
    return pipeline_control(pipeline, f"start_over/g{generation:06d}.json")


def start_over_completion(pipeline: str, generation: int) -> str:
    """Returns the key of the completion of a start-over."""
    return pipeline_control(pipeline, f"start_over/g{generation:06d}.done.json")


def rollback(pipeline: str, ordinal: int) -> str:
    """Returns the key of the plan of a rollback: the version to restore and the batches to re-commit."""
    return pipeline_control(pipeline, f"rollbacks/{ordinal:06d}.json")


def rollback_files(pipeline: str, ordinal: int) -> str:
    """Returns the key of the list of files with the rows that were re-read for a rollback."""
    return pipeline_control(pipeline, f"rollbacks/{ordinal:06d}.files.json")


def rollback_completion(pipeline: str, ordinal: int) -> str:
    """Returns the key of the completion of a rollback, with the version it committed."""
    return pipeline_control(pipeline, f"rollbacks/{ordinal:06d}.done.json")


def approval(pipeline: str, name: str) -> str:
    """Returns the key of the approval of an operation in one run: the question and its answer."""
    return pipeline_control(pipeline, f"approvals/{name}.json")


def held_table(pipeline: str, name: str) -> str:
    """Returns the key of the record of a held table."""
    return pipeline_control(pipeline, f"held/{name}.json")


def requests(pipeline: str) -> str:
    """Returns the folder of requests to the stream."""
    return pipeline_control(pipeline, "requests") + "/"


def resume_request(pipeline: str, name: str) -> str:
    """Returns the key of a request to the stream to commit a held table's batches."""
    return f"{requests(pipeline)}resume-{name}.json"


def turn_request(pipeline: str, name: str) -> str:
    """Returns the key of a request for the write turn of a table, and its grant."""
    return f"{requests(pipeline)}turn-{name}.json"


def prepared_replay(pipeline: str, ordinal: int) -> str:
    """Returns the key of a prepared replay of quarantined rows."""
    return pipeline_control(pipeline, f"replays/{ordinal:012d}.json")


def mutations(pipeline: str, name: str = "") -> str:
    """Returns the folder of a pipeline's mutation batches, or one key in it."""
    return pipeline_control(pipeline, f"mutations/{name}")


def mutation_batch(pipeline: str, number: int) -> str:
    """Returns the key of the plan of a mutation batch: the version ranges it covers."""
    return mutations(pipeline, f"{number:012d}.json")


def mutation_completion(pipeline: str, number: int) -> str:
    """Returns the key of the completion of a mutation batch, with its result."""
    return mutations(pipeline, f"{number:012d}.done.json")


def gold_state(pipeline: str, table_name: str) -> str:
    """Returns the key of the record of the time at which a gold table was last up to date."""
    return pipeline_control(pipeline, f"gold/{table_name}.json")


def gold_shadows(pipeline: str, table_name: str) -> str:
    """Returns the folder of a gold table's shadow tables and of its refresh lock."""
    return pipeline_control(pipeline, f"gold_shadows/{table_name}")


def gold_shadow(pipeline: str, table_name: str, ordinal: int) -> str:
    """Returns the key of a shadow table: a refresh builds it and then swaps it in."""
    return f"{gold_shadows(pipeline, table_name)}/{ordinal:06d}"


def announced_view(pipeline: str, view: str) -> str:
    """Returns the key of the record of a view's last published result: its number and digest."""
    return pipeline_control(pipeline, f"announced_views/{view}.json")


def model_runs(pipeline: str, name: str, number: int | None = None) -> str:
    """Returns the folder of a model's training runs; with a number the manifest of that run."""
    return f"models/{pipeline}/{name}/" + ("" if number is None else f"{number}/manifest.json")


def alerts(name: str = "") -> str:
    """Returns the folder of alerts, or one key in it: `state/<cause>/<subject>.json`,
    `spool/<notification>.json`, ..."""
    return f"control/alerts/{name}"


def experiment(name: str, run: str) -> str:
    """Returns the temporary folder of one experiment run."""
    return f"experiments/{name}-{run}"


def reader(name: str) -> str:
    """Returns the key of the table that a change reader maintains."""
    return f"readers/{name}"


def reader_records(pipeline: str) -> str:
    """Returns the folder of reader claims, which pin versions of a pipeline's tables."""
    return pipeline_control(pipeline, "readers") + "/"


def reader_record(pipeline: str, table_name: str, reader_name: str) -> str:
    """Returns the key of the claim of one reader on one table."""
    return f"{reader_records(pipeline)}{table_name}/{reader_name}.json"


def readers() -> str:
    """Returns the folder of the tables that change readers maintain."""
    return "readers"


def vacuum_record(pipeline: str) -> str:
    """Returns the key of the record of each table's last VACUUM with a full folder listing."""
    return maintenance(pipeline, "vacuum.json")


def first_maintenance(pipeline: str) -> str:
    """Returns the key of the record of a pipeline's first maintenance run: its time, and whether the tables were new
    then.
    """
    return maintenance(pipeline, "first_maintenance.json")


def table_snapshots() -> str:
    """Returns the key of the table of table-health snapshots."""
    return "control/table_health"


def table_snapshots_maintenance() -> str:
    """Returns the lock folder for maintenance of the snapshot table, which all pipelines write to."""
    return "control/table_health_maintenance"


def generations(pipeline: str) -> str:
    """Returns the key of the current generation and checkpoint of the ingest query."""
    return pipeline_control(pipeline, "generations.json")


def staging(pipeline: str, table_name: str) -> str:
    """Returns the folder of files that Spark writes for one table before they are committed."""
    return pipeline_control(pipeline, f"staging/{table_name}")


def checkpoint_store(pipeline: str) -> str:
    """Returns the key of the ledger's table of batches."""
    return pipeline_control(pipeline, "checkpoint_store")


def batch_metadata_store(pipeline: str) -> str:
    """Returns the key of the ledger's table of steps: one row per batch and table."""
    return pipeline_control(pipeline, "batch_metadata_store")


def quarantine_replays(pipeline: str) -> str:
    """Returns the key of the table of quarantined rows that were replayed."""
    return pipeline_control(pipeline, "quarantine_replays")


def progress(pipeline: str) -> str:
    """Returns the key of the table of batch metrics: input read and rows written."""
    return pipeline_control(pipeline, "progress")


def zorder_ledger(pipeline: str) -> str:
    """Returns the key of the table of the files that OPTIMIZE has Z-ordered."""
    return pipeline_control(pipeline, "zorder_ledger")


def zorder_group(pipeline: str, writer: str) -> str:
    """Returns the key of the record of the files that one writer is Z-ordering at present."""
    return maintenance(pipeline, f"group-{writer}.json")


def maintenance(pipeline: str, name: str = "") -> str:
    """Returns the maintenance folder of a pipeline, or one key in it, such as its lease."""
    return pipeline_control(pipeline, f"maintenance/{name}").rstrip("/")


def input_rate(pipeline: str) -> str:
    """Returns the key of a pipeline's usual input by hour of the day."""
    return pipeline_control(pipeline, "input_rate.json")


def throughput(control: str) -> str:
    """Returns the key of the recent throughput of the stream with this control folder."""
    return f"{control}/throughput.json"


def kafka_topic(pipeline: str, generation: int, topic: str) -> str:
    """Returns the key of the object that stores the topic id a generation first saw for a topic name."""
    return pipeline_control(pipeline, f"kafka/g{generation:06d}/{topic}.json")


def kinesis_state(pipeline: str, generation: int) -> str:
    """Returns the folder of shard-reader state of a generation."""
    return pipeline_control(pipeline, f"kinesis/g{generation:06d}")


def reprocess_staging(pipeline: str, reprocess_id: str, table_name: str = "") -> str:
    """Returns the staging folder of a reprocess, or that of one table."""
    return reprocess(pipeline, f"{reprocess_id}/staging/{table_name}")


def specs(pipeline: str) -> str:
    """Returns the folder of specs that the stream has started with."""
    return pipeline_control(pipeline, "specs") + "/"


def relay_listing(relay: str) -> str:
    """Returns the key of the position of a relay's bucket listing."""
    return relay_control(relay, "listing.json")


def relay_listing_request(relay: str) -> str:
    """Returns the key of a request to a relay to list its bucket."""
    return relay_control(relay, "listing_request.json")


def relay_cleanup(relay: str) -> str:
    """Returns the key of the result of the last clean-up of a relay's bucket."""
    return relay_control(relay, "cleanup.json")


def alert_state(cause: str, subject: str) -> str:
    """Returns the key of the state of one alert."""
    return alerts(f"state/{cause}/{subject}.json")


def health_verdicts() -> str:
    """Returns the key of the verdicts of the last health check."""
    return alerts("verdicts.json")


def alert_notification(notification: str) -> str:
    """Returns the key of a notification in the spool, waiting to be sent."""
    return alerts(f"spool/{notification}.json")


def alert_delivery(notification: str, channel: str) -> str:
    """Returns the key of the delivery state of a notification on one channel."""
    return alerts(f"deliveries/{notification}.{channel}.json")


def alert_job(dag_id: str) -> str:
    """Returns the key of the start of a job's current series of failed runs."""
    return alerts(f"jobs/{dag_id}.json")


def lease(folder: str) -> str:
    """Returns the key of the lease in a control folder: of a stream, a relay or a maintenance run."""
    return f"{folder}/lease.json"


def heartbeat(folder: str) -> str:
    """Returns the key of the heartbeat of a control folder's process."""
    return f"{folder}/heartbeat.json"


def stop_request(folder: str) -> str:
    """Returns the key of the stop request for a control folder's process."""
    return f"{folder}/stop.json"


def stream_lease(pipeline: str) -> str:
    """Returns the key of the lease of a pipeline's stream."""
    return lease(pipeline_control(pipeline))
