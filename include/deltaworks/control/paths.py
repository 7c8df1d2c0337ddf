"""Keys of all tables and control objects, relative to the lake's root, with a section per area.

No other module builds a key, except `deltaworks.privacy.paths`: keys in the vault, and of privacy data
that collectors and other writers before the lake share.
"""

from __future__ import annotations

from typing import Final

from deltaworks.privacy.paths import control_path

#: The name of the process that evaluates rules.
RULES_PROCESS: Final = "rules"

#: The name of the SQL server.
SQL_SERVER_PROCESS: Final = "sql_server"

#: The name of the Spark Connect server.
SPARK_CONNECT_PROCESS: Final = "spark_connect"

#: The folder of all remediations, with an object for each handled notification.
REMEDIATIONS_FOLDER: Final = "control/remediations"


# Tables and other data.


def table(pipeline: str, name: str) -> str:
    """Returns the key of a bronze, live, gold or quarantine table."""
    return f"tables/{pipeline}/{name}"


def database(name: str) -> str:
    """Returns the key of an enrichment database, which people upload."""
    return f"databases/{name}"


def staging(pipeline: str, table_name: str) -> str:
    """Returns the folder of files that Spark writes for one table before they are committed."""
    return pipeline_control(pipeline, f"staging/{table_name}")


def reader(name: str = "") -> str:
    """Returns the key of the table that a change reader maintains, or the folder of all of them."""
    return f"readers/{name}".rstrip("/")


def model_runs(pipeline: str, name: str, number: int | None = None) -> str:
    """Returns the folder of a model's training runs; with a number the manifest of that run."""
    return f"models/{pipeline}/{name}/" + ("" if number is None else f"{number}/manifest.json")


def experiment(name: str, run: str) -> str:
    """Returns the temporary folder of one experiment run."""
    return f"experiments/{name}-{run}"


# Control folders of processes, and the objects that each of them may hold.


def pipeline_control(pipeline: str, name: str = "") -> str:
    """Returns a pipeline's control folder, or one key in it: checkpoint_store, progress, lease.json, ..."""
    return f"control/pipelines/{pipeline}/{name}".rstrip("/")


def group_control(group: str) -> str:
    """Returns the control folder of a stream group. Most state is in the folders of its pipelines."""
    return f"control/stream_groups/{group}"


def relay_control(relay: str, name: str = "") -> str:
    """Returns a relay's control folder, or one key in it: file_events, message_quarantine, lease.json, ..."""
    return f"control/relays/{relay}/{name}".rstrip("/")


def collector_control(collector: str, name: str = "") -> str:
    """Returns the control folder of a collector, or one key in it: `losses.json`, `<process id>/heartbeat.json`, …"""
    return f"control/collectors/{collector}/{name}".rstrip("/")


def lease(folder: str) -> str:
    """Returns the key of the lease in a control folder: of a stream, a relay or a maintenance run."""
    return f"{folder}/lease.json"


def stream_lease(pipeline: str) -> str:
    """Returns the key of the lease of a pipeline's stream."""
    return lease(pipeline_control(pipeline))


def heartbeat(folder: str) -> str:
    """Returns the key of the heartbeat of a control folder's process."""
    return f"{folder}/heartbeat.json"


def stop_request(folder: str) -> str:
    """Returns the key of the stop request for a control folder's process."""
    return f"{folder}/stop.json"


def failures(folder: str) -> str:
    """Returns the key of the failed starts of a control folder's process, which delay its next start."""
    return f"{folder}/failures.json"


def restarts(folder: str) -> str:
    """Returns the key of the restarts by the health check of a control folder's process."""
    return f"{folder}/restarts.json"


def throughput(control: str) -> str:
    """Returns the key of the recent throughput of the stream with this control folder."""
    return f"{control}/throughput.json"


def replayed_throughput(control: str) -> str:
    """Returns the key of counts of recently quarantined events that were replayed since."""
    return f"{control}/replayed_throughput.json"


# Streams: ledger, generations, checkpoints and batches.


def checkpoint_store(pipeline: str) -> str:
    """Returns the key of the ledger's table of batches."""
    return pipeline_control(pipeline, "checkpoint_store")


def batch_metadata_store(pipeline: str) -> str:
    """Returns the key of the ledger's table of steps: one row per batch and table."""
    return pipeline_control(pipeline, "batch_metadata_store")


def progress(pipeline: str) -> str:
    """Returns the key of the table of batch metrics: input read and rows written."""
    return pipeline_control(pipeline, "progress")


def generations(pipeline: str) -> str:
    """Returns the key of the current generation and checkpoint of the ingest query."""
    return pipeline_control(pipeline, "generations.json")


def checkpoint(pipeline: str, generation: int, ordinal: int) -> str:
    """Returns the folder of Spark's checkpoint of the pipeline's ingest query."""
    return pipeline_control(pipeline, f"checkpoints/g{generation:06d}/c{ordinal:04d}")


def live_checkpoint(pipeline: str, generation: int, table_name: str) -> str:
    """Returns the folder of Spark's checkpoint of a live table's query. It refers to table versions, so it belongs to
    one generation.
    """
    return pipeline_control(pipeline, f"checkpoints/g{generation:06d}/live/{table_name}")


def kafka_topic(pipeline: str, generation: int, topic: str) -> str:
    """Returns the key of the object that stores the topic id a generation first saw for a topic name."""
    return pipeline_control(pipeline, f"kafka/g{generation:06d}/{topic}.json")


def kinesis_state(pipeline: str, generation: int) -> str:
    """Returns the folder of shard-reader state of a generation."""
    return pipeline_control(pipeline, f"kinesis/g{generation:06d}")


def prepared_batch(pipeline: str, generation: int, batch_id: int) -> str:
    """Returns the key of a prepared batch: the record of the files to commit."""
    return pipeline_control(pipeline, f"prepared/g{generation:06d}/{batch_id:012d}.json")


def batch_crashes(pipeline: str, generation: int, batch_id: int) -> str:
    """Returns the folder of worker-crash records of a batch, until the batch is prepared."""
    return pipeline_control(pipeline, f"crashes/g{generation:06d}/{batch_id:012d}")


def start_over(pipeline: str, generation: int) -> str:
    """Returns the key of the record of a start-over. Generation 1 has none."""
    return pipeline_control(pipeline, f"start_over/g{generation:06d}.json")


def start_over_completion(pipeline: str, generation: int) -> str:
    """Returns the key of the completion of a start-over."""
    return pipeline_control(pipeline, f"start_over/g{generation:06d}.done.json")


def specs(pipeline: str) -> str:
    """Returns the folder of specs that the stream has started with."""
    return pipeline_control(pipeline, "specs") + "/"


def spec_record(pipeline: str, fingerprint: str) -> str:
    """Returns the key of a spec that the stream has started with."""
    return pipeline_control(pipeline, f"specs/{fingerprint}.json")


def current_spec(pipeline: str) -> str:
    """Returns the key of the fingerprint of the spec that the stream last started with."""
    return pipeline_control(pipeline, "specs/current.json")


def accepted_change(pipeline: str, old: str, new: str) -> str:
    """Returns the key of the acceptance of an unsafe change between the two specs with these fingerprints."""
    return pipeline_control(pipeline, f"specs/accepted/{old}-{new}.json")


def input_rate(control: str) -> str:
    """Returns the key of the usual input, by hour of the day, of the stream with this control folder."""
    return f"{control}/input_rate.json"


# Requests to a stream, held tables and approvals.


def requests(pipeline: str) -> str:
    """Returns the folder of requests to the stream."""
    return pipeline_control(pipeline, "requests") + "/"


def resume_request(pipeline: str, name: str) -> str:
    """Returns the key of a request to the stream to commit a held table's batches."""
    return f"{requests(pipeline)}resume-{name}.json"


def turn_request(pipeline: str, name: str) -> str:
    """Returns the key of a request for the write turn of a table, and its grant."""
    return f"{requests(pipeline)}turn-{name}.json"


def namespace_approval(namespace: str, name: str) -> str:
    """Returns the key of the approval of an operation on a namespace of personal data."""
    return control_path(namespace, f"approvals/{name}.json")


def held_table(pipeline: str, name: str) -> str:
    """Returns the key of the record of a held table."""
    return pipeline_control(pipeline, f"held/{name}.json")


def approval(pipeline: str, name: str) -> str:
    """Returns the key of the approval of an operation in one run: the question and its answer."""
    return pipeline_control(pipeline, f"approvals/{name}.json")


# Relays.


def relay_listing(relay: str) -> str:
    """Returns the key of the position of a relay's bucket listing."""
    return relay_control(relay, "listing.json")


def relay_listing_request(relay: str) -> str:
    """Returns the key of a request to a relay to list its bucket."""
    return relay_control(relay, "listing_request.json")


def relay_cleanup(relay: str) -> str:
    """Returns the key of the result of the last clean-up of a relay's bucket."""
    return relay_control(relay, "cleanup.json")


# Collectors and vaults.


def collector_heartbeat(collector: str, process: str) -> str:
    """Returns the key of a process's heartbeat."""
    return collector_control(collector, f"{process}/heartbeat.json")


def collector_counts(collector: str, process: str, hour: str) -> str:
    """Returns the key of a process's counts for an hour such as `2026-11-23T14`."""
    return collector_control(collector, f"{process}/counts/{hour}.json")


def lost_events(collector: str) -> str:
    """Returns the key of the last check for lost events."""
    return collector_control(collector, "losses.json")


def vault_heartbeat(namespace: str) -> str:
    """Returns the key of the heartbeat of the job that maintains a namespace's vault."""
    return control_path(namespace, "vault.json")


# Recovery and mutations.


def rollback(pipeline: str, ordinal: int) -> str:
    """Returns the key of the plan of a rollback: the version to restore and the batches to re-commit."""
    return pipeline_control(pipeline, f"rollbacks/{ordinal:06d}.json")


def rollback_files(pipeline: str, ordinal: int) -> str:
    """Returns the key of the list of files with the rows that were re-read for a rollback."""
    return pipeline_control(pipeline, f"rollbacks/{ordinal:06d}.files.json")


def rollback_completion(pipeline: str, ordinal: int) -> str:
    """Returns the key of the completion of a rollback, with the version it committed."""
    return pipeline_control(pipeline, f"rollbacks/{ordinal:06d}.done.json")


def reprocess(pipeline: str, name: str) -> str:
    """Returns the key of the plan of a reprocess (`<id>.json`), or one key in its folder (`<id>/files.json`,
    `<id>/staging/<table>`).
    """
    return pipeline_control(pipeline, f"reprocess/{name}")


def reprocess_staging(pipeline: str, reprocess_id: str, table_name: str = "") -> str:
    """Returns the staging folder of a reprocess, or that of one table."""
    return reprocess(pipeline, f"{reprocess_id}/staging/{table_name}")


def prepared_replay(pipeline: str, ordinal: int) -> str:
    """Returns the key of a prepared replay of quarantined rows."""
    return pipeline_control(pipeline, f"replays/{ordinal:012d}.json")


def quarantine_replays(pipeline: str) -> str:
    """Returns the key of the table of quarantined rows that were replayed."""
    return pipeline_control(pipeline, "quarantine_replays")


def mutations(pipeline: str, name: str = "") -> str:
    """Returns the folder of a pipeline's mutation batches, or one key in it."""
    return pipeline_control(pipeline, f"mutations/{name}")


def mutation_batch(pipeline: str, number: int) -> str:
    """Returns the key of the plan of a mutation batch: the version ranges it covers."""
    return mutations(pipeline, f"{number:012d}.json")


def mutation_completion(pipeline: str, number: int) -> str:
    """Returns the key of the completion of a mutation batch, with its result."""
    return mutations(pipeline, f"{number:012d}.done.json")


# Gold tables and change readers.


def gold_state(pipeline: str, table_name: str) -> str:
    """Returns the key of the record of the time at which a gold table was last up to date."""
    return pipeline_control(pipeline, f"gold/{table_name}.json")


def gold_verification(pipeline: str, table_name: str) -> str:
    """Returns the key of the record of a gold table's comparisons with its SQL."""
    return pipeline_control(pipeline, f"gold_verifications/{table_name}.json")


def gold_shadows(pipeline: str, table_name: str) -> str:
    """Returns the folder of a gold table's shadow tables and of its refresh lock."""
    return pipeline_control(pipeline, f"gold_shadows/{table_name}")


def gold_shadow(pipeline: str, table_name: str, ordinal: int) -> str:
    """Returns the key of a shadow table: a refresh builds it and then swaps it in."""
    return f"{gold_shadows(pipeline, table_name)}/{ordinal:06d}"


def announced_view(pipeline: str, view: str) -> str:
    """Returns the key of the record of a view's last published result: its number and digest."""
    return pipeline_control(pipeline, f"announced_views/{view}.json")


def reader_records(pipeline: str) -> str:
    """Returns the folder of reader claims, which pin versions of a pipeline's tables."""
    return pipeline_control(pipeline, "readers") + "/"


def reader_record(pipeline: str, table_name: str, reader_name: str) -> str:
    """Returns the key of the claim of one reader on one table."""
    return f"{reader_records(pipeline)}{table_name}/{reader_name}.json"


# Maintenance.


def maintenance(pipeline: str, name: str = "") -> str:
    """Returns the maintenance folder of a pipeline, or one key in it, such as its lease."""
    return pipeline_control(pipeline, f"maintenance/{name}").rstrip("/")


def vacuum_record(pipeline: str) -> str:
    """Returns the key of the record of each table's last VACUUM with a full folder listing."""
    return maintenance(pipeline, "vacuum.json")


def first_maintenance(pipeline: str) -> str:
    """Returns the key of the record of a pipeline's first maintenance run: its time, and whether the tables were new
    then.
    """
    return maintenance(pipeline, "first_maintenance.json")


def zorder_ledger(pipeline: str) -> str:
    """Returns the key of the table of the files that OPTIMIZE has Z-ordered."""
    return pipeline_control(pipeline, "zorder_ledger")


def zorder_group(pipeline: str, writer: str) -> str:
    """Returns the key of the record of the files that one writer is Z-ordering at present."""
    return maintenance(pipeline, f"group-{writer}.json")


def table_files_lease(pipeline: str, table_name: str) -> str:
    """Returns the key of the lease of a job that deletes or restores files of a table."""
    return maintenance(pipeline, f"files-{table_name}.json")


def table_snapshots() -> str:
    """Returns the key of the table of table-health snapshots."""
    return "control/table_health"


def table_snapshots_maintenance() -> str:
    """Returns the lock folder for maintenance of the snapshot table, which all pipelines write to."""
    return "control/table_health_maintenance"


# Alerts and silences.


def alerts(name: str = "") -> str:
    """Returns the folder of alerts, or one key in it: `state/<cause>/<subject>.json`,
    `spool/<notification>.json`, ..."""
    return f"control/alerts/{name}"


def alert_state(cause: str, subject: str) -> str:
    """Returns the key of the state of one alert."""
    return alerts(f"state/{cause}/{subject}.json")


def alert_notification(notification: str) -> str:
    """Returns the key of a notification in the spool, waiting to be sent."""
    return alerts(f"spool/{notification}.json")


def alert_delivery(notification: str, channel: str) -> str:
    """Returns the key of the delivery state of a notification on one channel."""
    return alerts(f"deliveries/{notification}.{channel}.json")


def alert_job(dag_id: str) -> str:
    """Returns the key of the start of a job's current series of failed runs."""
    return alerts(f"jobs/{dag_id}.json")


def health_check() -> str:
    """Returns the key of the heartbeat of the health check."""
    return alerts("health.json")


def health_verdicts() -> str:
    """Returns the key of the verdicts of the last health check."""
    return alerts("verdicts.json")


def data_file_checks() -> str:
    """Returns the key of how far the health check has compared the files of tables with their logs."""
    return alerts("data_files.json")


def silences() -> str:
    """Returns the folder of silences."""
    return alerts("silences/")


def silence(silence_id: str) -> str:
    """Returns the key of one silence."""
    return f"{silences()}{silence_id}.json"


# Rules.


def sql_server_control() -> str:
    """Returns the control folder of the SQL server."""
    return "control/sql_server"


def sql_query_log() -> str:
    """Returns the key of the table of queries that the SQL server has run."""
    return f"{sql_server_control()}/queries"


def spark_connect_control() -> str:
    """Returns the control folder of the Spark Connect server."""
    return "control/spark_connect"


def rules_control() -> str:
    """Returns the control folder of the process that evaluates rules."""
    return "control/rules"


def rule_state(pipeline: str, rule: str = "") -> str:
    """Returns the key of the state of a rule (the last evaluated minute and the state of each series), or the folder of
    a pipeline's rule states."""
    return pipeline_control(pipeline, "rules/states") + (f"/{rule}.json" if rule else "/")


def rule_baseline(pipeline: str, rule: str, name: str) -> str:
    """Returns the key of the baseline of a rule's values on one date."""
    return pipeline_control(pipeline, f"rules/baselines/{rule}/{name}.json")


def pipeline_annotations(pipeline: str, name: str = "") -> str:
    """Returns the folder of a pipeline's annotations, or one annotation."""
    return pipeline_control(pipeline, f"annotations/{name}") + ("" if name else "/")


# Feeds and remediations.


def feeds_control(pipeline: str) -> str:
    """Returns the control folder of a pipeline's feed process: lease, heartbeat and stop flag."""
    return pipeline_control(pipeline, "feeds")


def feed(pipeline: str, name: str, entry: str = "") -> str:
    """Returns the folder of a feed, or one key in it: `position.json`, `deliveries/<number>.json`,
    `dead/<...>.json`."""
    return f"{feeds_control(pipeline)}/{name}/{entry}".rstrip("/")


def remediation_control(name: str) -> str:
    """Returns the control folder of one remediation's process: lease, heartbeat and stop flag."""
    return f"control/remediators/{name}"


def remediation(notification: str) -> str:
    """Returns the key of the record of the action taken for a notification."""
    return f"{REMEDIATIONS_FOLDER}/{notification}.json"


def remediation_hold(name: str) -> str:
    """Returns the key of the object that pauses a remediation until a person resumes it."""
    return f"{remediation_control(name)}/hold.json"


def unusable_message(name: str, message_id: str) -> str:
    """Returns the key of a stored message from a remediation's queue that could not be parsed."""
    return f"{remediation_control(name)}/unusable/{message_id}.json"


# Summaries that console pages read.


def recent_batches(pipeline: str) -> str:
    """Returns the key of the last batches and problems of a pipeline's stream."""
    return pipeline_control(pipeline, "recent.json")


def stream_hours(pipeline: str) -> str:
    """Returns the key of hourly totals of a pipeline's stream."""
    return pipeline_control(pipeline, "hours.json")


def tables_summary(pipeline: str) -> str:
    """Returns the key of the newest health snapshot of each table of a pipeline."""
    return pipeline_control(pipeline, "tables.json")


def nights_summary(pipeline: str) -> str:
    """Returns the key of the last nightly maintenance runs of a pipeline."""
    return pipeline_control(pipeline, "nights.json")


def quarantine_summary(pipeline: str) -> str:
    """Returns the key of counts of the open rows in a pipeline's quarantine."""
    return pipeline_control(pipeline, "quarantine.json")


def rule_warnings_summary(pipeline: str) -> str:
    """Returns the key of counts of rows that fail a table rule with `on_fail: warn`."""
    return pipeline_control(pipeline, "rule_warnings.json")


def mutations_summary(pipeline: str) -> str:
    """Returns the key of the last mutation batches of a pipeline, and the number of pending requests."""
    return pipeline_control(pipeline, "mutations.json")


def erasures_summary(namespace: str) -> str:
    """Returns the key of the erasure requests of a namespace: states and deadlines."""
    return control_path(namespace, "erasures.json")


# Erasure. No key and no record identifies a person: tokens are stored only in the vault, records contain their digest.


def erasure_requests(namespace: str) -> str:
    """Returns the folder of all requests of a namespace."""
    return control_path(namespace, "requests") + "/"


def erasure_step(namespace: str, request_id: str, number: int) -> str:
    """Returns the key of the record of one state that a request has reached; numbers start at 1."""
    return f"{erasure_requests(namespace)}{request_id}/{number:04d}.json"


def erasure_window(namespace: str, number: int) -> str:
    """Returns the key of the record of an erasure window: the requests whose rows it deletes."""
    return control_path(namespace, f"windows/{number:06d}.json")


def erasure_window_table(namespace: str, number: int, pipeline: str, table: str) -> str:
    """Returns the key of an erasure window's result for one table."""
    return control_path(namespace, f"windows/{number:06d}/{pipeline}.{table}.json")


def erasure_certificate(namespace: str, request_id: str = "") -> str:
    """Returns the key of the certificate of a request, or the folder of a namespace's certificates."""
    return control_path(namespace, "certificates") + (f"/{request_id}.json" if request_id else "/")


def erasure_lease(namespace: str) -> str:
    """Returns the key of the lease of the process that advances the requests of a namespace."""
    return control_path(namespace, "erasure_lease.json")


def landing_replacement(number: int) -> str:
    """Returns the key of the plan of a rewrite of landed objects without erased events; numbers start at 1."""
    return f"control/landing/replacements/{number:06d}.json"


def landing_replacement_completion(number: int) -> str:
    """Returns the key of the completion of a rewrite, with the ETags of the new objects."""
    return f"control/landing/replacements/{number:06d}.done.json"
