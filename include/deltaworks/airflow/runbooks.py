"""The runbook each DAG carries: what it is, what to do when it is red, how to stop and start it."""

from __future__ import annotations

from deltaworks.specs.mutation import MutationsSpec
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.relay import CleanSpec, RelaySpec


def relay_runbook(relay: RelaySpec) -> str:
    """For `relay__<relay>`."""
    buckets = ", ".join(f"`{bucket}`" for bucket in relay.buckets)
    return f"""
### Relay `{relay.relay}`
{relay.description}

Reads the notification queue of {buckets} and appends every new object to the **file event log**, from which
all streams learn what to read. It is the only reader of the queue and the only writer of the log. A message
is deleted only after its events are in the log, so nothing is lost while this is down: the queue keeps it,
for as long as the queue's retention.

It runs without end, in runs of {relay.max_run_seconds} s; a run that ends is followed by the next within
seconds.

**When red.** The last line of the task log names the condition and the next step.
- `LEASE_HELD`: another process reads this queue. Wait one minute; if it stays, end that process (it is
  named there).
- `REFERENCE_UNRESOLVED`: an environment variable of the stack is missing in Airflow's environment.
- Storage or queue unreachable: it starts again by itself, waiting up to five minutes between tries.

**Stop**: `deltaworks stop {relay.relay}`. Pausing alone lets the present run go on; marking it failed kills
it, which is safe but not graceful. **Start**: `deltaworks start {relay.relay}`.

Owner: {relay.owner}. How it is now: [progress](/deltaworks/progress/relay__{relay.relay}).
"""


def clean_runbook(relay: RelaySpec, declared: CleanSpec) -> str:
    """For `clean__<relay>`."""
    what = "Deletes" if declared.mode == "delete" else f"Moves to `{declared.archive_to}`"
    only_counts = " **It only counts** until `clean.dry_run` is false." if declared.dry_run else ""
    return f"""
### What has landed of relay `{relay.relay}`
{what} objects {declared.after_days:g} days after they were logged, once **every** pipeline that reads them
has landed them. Left alone are objects a pipeline has yet to read, objects whose rows wait in quarantine for a
replay that needs them, and objects no pipeline reads.

What is removed cannot be reprocessed, and a pipeline that starts over does not get it.{only_counts}

**When red.** The last line of the task log names the condition and the next step. Running it again is safe at any time.

By hand: `deltaworks files clean {relay.relay}` (a dry run).

Owner: {relay.owner}.
"""


def stream_runbook(spec: PipelineSpec) -> str:
    """For `stream__<pipeline>`."""
    name = spec.pipeline
    return f"""
### Stream `{name}`
{spec.description}

One Spark Structured Streaming job that turns newly landed files into the pipeline's {len(spec.tables)}
bronze tables every {spec.stream.trigger_seconds:g} s. What does not fit goes to the table `quarantine` with
its reason. Every batch is written exactly once, whatever is killed and when: the next run first finishes a
batch that was torn.

It runs without end, in runs of {spec.stream.max_run_seconds} s; the next run goes on 12 to 30 s later. At
most one runs at a time: a second one waits for the lease and gives up.

**When red.** The error's condition is in the last lines of the task log.
- A condition that is *not retryable* (a spec, a contract): mend it; the task comes back by itself within five
  minutes, or at once when you clear it.
- `LEASE_HELD`: another driver of this pipeline is alive. It is named with host, process and run; it ends by
  itself within seconds if the task that started it is gone.
- Red again and again: after many failed runs the DAG **pauses itself**, and `stream_health` says
  `PAUSED_WITHOUT_STOP`. Mend the cause, then `deltaworks start {name}`.
- Clearing or marking failed kills the driver at once. That is safe.

**Stop**: `deltaworks stop {name}` (ends between batches and pauses the DAG). **Start**: `deltaworks start
{name}`.

Owner: {spec.owner}. How it is now: [progress](/deltaworks/progress/stream__{name}).
"""


HEALTH_RUNBOOK = """
### Are the relays and streams well?
Every minute each relay and stream is judged by its heartbeat: how old it is, its state and error, how many
files wait and for how long. The task log holds a table; the XCom `verdicts` holds the same as data. **Red
means that at least one is unhealthy** and was neither stopped nor paused on purpose. A task that is green
in its own DAG can be red here: a hung process has no other sign.

**When red.** Every unhealthy row names its cause and the next step.
- `HEARTBEAT_STALE`: the process hangs or is gone. If its task runs it is cleared, a few times an hour at most; the
  log says so. It resumes where it was.
- `PAUSED_WITHOUT_STOP`: its DAG is paused though nobody stopped it, by hand or by itself after many failed
  runs.
- `NOT_RESTARTED`, `NEVER_STARTED`: nothing starts it. Look at its DAG, at the pool's free slots, at the
  scheduler.
- `NO_PROGRESS`, `BACKLOG_OLD`: it lives but does not keep up. Look at its Spark UI.
- `SOURCE_EXPIRES`: the source forgets what waits soon; the column LEFT says when. Raise its retention now.
- `INPUT_SILENT`: it works, and its source brings nothing for longer than is declared or usual.
- `HEARTBEAT_UNREADABLE`: the lake's storage does not answer.

Each is an alert too, told once and when it ends, on the channels of the environment; so are jobs that are overdue.
That this check itself runs is watched by `deltaworks deadman`.

To silence one that is meant to be down, use `deltaworks stop NAME`: a stop is on record, a pause is not.
All of them now: [progress](/deltaworks/progress).
"""


def gold_runbook(spec: PipelineSpec) -> str:
    """For `gold__<pipeline>`."""
    tables = "\n".join(f"- `{table.name}` {table.description}" for table in spec.gold.tables)
    return f"""
### Gold tables of `{spec.pipeline}`
{tables}

Rebuilds the partitions that new data has touched since the last build, however late that data is; the rest
is left alone. It works from the tables as they are, not from the time it was scheduled for, so a missed run
needs no catching up and a second run does no harm.

**Trigger it** with `tables` to build only some, with `dates` to build these dates whatever has changed, with
`full` to build every partition anew. A change of SQL is seen by itself. `shadow` builds them anew beside the
tables and swaps them in once they hold their checks; it only counts until "Shadow: count only" is off.

**Backfill**: `airflow backfill create --dag-id gold__{spec.pipeline} --from-date 2026-01-01 --to-date
2026-01-31` makes one run a date, each of which builds that date anew (also in Airflow's own form). Tables that any
change affects are left out: they are not made of dates.

**When red.** The last lines of the task log name the condition. SQL that does not run and tables that are
not as declared are not retried: mend the SQL under `include/pipelines/{spec.pipeline}/gold`, then clear the
task. Storage and commit conflicts are retried.

**Stop**: pause the DAG. **Start**: unpause it. Owner: {spec.owner}.
"""


def rollback_runbook(spec: PipelineSpec) -> str:
    """For `rollback__<pipeline>`."""
    name = spec.pipeline
    return f"""
### Go back: `{name}`
Puts one bronze table back to a batch, a time or a version; or all tables of the pipeline to one batch. First
it **counts**: how many rows go, which batches have landed since and what becomes of them, which other changes
are undone. Then it **waits for a person** to approve that; there is no default answer. What is done is bounded
by what was approved: where more would go by then, it refuses.

- *One table*: the stream may go on. What batches have brought since comes back in the same commit.
- *All tables*: `deltaworks stop {name}` first. The source is read on from that batch in a new generation;
  `deltaworks start {name}` afterwards, with a `pipeline.yaml` that is mended.

**When red.** The last line of the task log names the condition and the next step.
- `LEASE_HELD`: the stream runs; stop it.
- `RESTORE_FILES_GONE`: VACUUM has removed files that version needs; choose a later one.
- `RESTORE_TOO_LARGE`, `START_OVER_TOO_LARGE`: more has landed since the count; run the DAG again.
- Broken off: clear the task. It goes on with what is on record.

By hand: `deltaworks restore {name}` (a dry run). Owner: {spec.owner}.
"""


def maintenance_runbook(spec: PipelineSpec) -> str:
    """For `maintenance__<pipeline>`."""
    vacuum = "only lists what it would delete" if spec.maintenance.vacuum_dry_run else "deletes"
    return f"""
### Maintenance of `{spec.pipeline}`
1. `optimize_tables` rewrites what health says is worth it, best first, within {spec.maintenance.optimize_minutes}
   minutes: closed partitions that are not in the order of their table's Z-order columns, and small files where they
   are many. Its log says of every table why, or why not; `deltaworks optimize {spec.pipeline}` says it beforehand. One
   night of the week has a second round, over what is left. The stream goes on meanwhile.
2. `vacuum_tables` {vacuum} files that no version of the last {spec.maintenance.kept_hours}
   hours needs, nor any reader that is known; the reason of each table is in the log.
   **Deleting is final**: versions older than that can no longer be read or restored.
3. `remove_orphans`, by the same switch, removes files of batches whose driver died before they were fixed, and old
   prepared batches that are complete.
4. `keep_control_tables`, by the same switch, merges the small files of the ledger and the progress table.
5. `learn_input` finds how much input is usual at each hour of the day, for the health check.
6. `snapshot_health` writes what every table is like: `deltaworks tables`, `deltaworks tables trend`.
7. `rebuild_gold` brings the gold tables up to date.

**Trigger it** with `tables` to treat only some, and with `vacuum_dry_run` off to really delete. A backfill is
refused: it would repeat the same work for every date.

**To delete what is out of use for less than seven days**, trigger it with hours to keep and a reason. It counts
first (`count_short_vacuum`), then `approve_short_vacuum` waits for a person: open the task, read the counts, approve
or reject. Without an answer nothing is deleted, and the run is red.

**When red.** The last lines of the task log name the condition. Every step can be cleared and run again:
what is done is not done twice. A conflict with the stream is retried.

**Stop**: pause the DAG; a running step can be marked failed at any time without harm to the tables.
**Start**: unpause it. Owner: {spec.owner}.
"""


def reprocess_runbook(spec: PipelineSpec) -> str:
    """For `reprocess__<pipeline>`."""
    return f"""
### Reprocess of `{spec.pipeline}`
Reads objects that have landed again, with the declaration of now, and puts their rows in the place of the
old ones, or into shadow tables beside them. For a rule or a path that was mended, and to fill a table or a
column that is new. **It counts and changes nothing until "Count only" is off.**

1. Trigger it with one way to select filled in, and read the counts in the log.
2. Trigger it again with "Count only" off.

The stream goes on. It yields each table for the moment of its commit. Every table gets one commit; rows keep
their `_batch_id`, `_seq` and `_position`, so repeating changes nothing. The next gold build sees the dates
that were touched. Live tables are not counted anew.

**When red.** The last line of the task log names the condition. Clear the task: it goes on with what it had
begun.
- `REPROCESS_OBJECTS_GONE`: the landing bucket has no longer all objects. Restore them, or let their rows be.
- `REPROCESS_SPEC_DIFFERS`: `deltaworks stop {spec.pipeline}` and `deltaworks start {spec.pipeline}` first, so
  that the stream lands rows the same way.
- `TURN_NOT_GRANTED`, `DELTA_CONFLICT`, `LEASE_HELD`: another job was at work; retried.

**Stop**: mark the task failed; nothing is left half done. Owner: {spec.owner}.
"""


def mutation_runbook(spec: PipelineSpec, declared: MutationsSpec) -> str:
    """For `mutations__<pipeline>`."""
    tables = ", ".join(f"`{table.name}`" for table in spec.tables if table.mutable is not None)
    return f"""
### Mutations of `{spec.pipeline}`
Applies the requests in `{declared.requests}` to {tables}, batch by batch, each of at most
{declared.max_requests:,} requests. The stream goes on; it yields a table for the moment of its merge, for
{declared.max_turn_seconds} s at most. A run works on what waits, whatever it was scheduled for: a missed one needs no
catching up, a second one does no harm.

**Trigger it** with "Report only" to see what would be touched, or with one organisation to have its requests
applied ahead of the others.

**When red.** The last line of the task log names the condition. Clear the task: it completes what was begun.
- `LEASE_HELD`: another run is at work, or one died within the last minute; retried.
- `TURN_NOT_GRANTED`, `TURN_LOST`: the stream is in a long batch, or the merge takes longer than
  `max_turn_seconds`. Lower `max_requests`, or allow a longer pause.
- `DELTA_CONFLICT`: something that takes no write turn rewrites the table. Find it in the table's history.
- `MUTATION_BOUNDS_GONE`: a batch lay unfinished for longer than versions are kept. Run `deltaworks mutations run
  {spec.pipeline} --everything --no-dry-run`.
- `MUTATIONS_BEHIND` of `stream_health`: requests have waited for more than {declared.alert_after_minutes} minutes.

`deltaworks mutations status {spec.pipeline}` shows the last batches, what waits, and the last pause.
**Stop**: pause the DAG; a running task can be marked failed at any time. Owner: {spec.owner}.
"""
