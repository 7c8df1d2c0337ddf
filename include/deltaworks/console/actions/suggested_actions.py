"""Suggests the action for a cause and subject as a prefilled form, and finds the form of a command.

An action is suggested only if it is the next step of the cause. Causes that a person must fix first, such as an invalid
declaration or a missing key, have none.
"""

from __future__ import annotations

import functools
import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote, urlencode

from deltaworks.errors.conditions import catalog
from deltaworks.operations.base import Operation
from deltaworks.operations.options import option_fields
from deltaworks.operations.registry import OPERATIONS
from deltaworks.specs.dag_ids import split_dag_id

_SEPARATORS: Final = re.compile(r"[ .:/]+")
#: A command in a next step that repairs a damaged data file.
_REPAIR: Final = re.compile(r"`(deltaworks recover files [^`]+)`")

#: Kinds of processes by which a subject can begin.
_PROCESSES: Final = ("stream", "relay", "feeds", "rules", "sql_server", "spark_connect", "collector", "remediation")


@dataclass(frozen=True, slots=True)
class SuggestedAction:
    """The label of a button and the path of the form it opens."""

    label: str
    path: str


def form_path(operation: str, subject: str, /, **values: str) -> str:
    """Returns the path of a prefilled form."""
    query = urlencode({name: value for name, value in values.items() if value})
    return f"/actions/{operation}/{quote(subject, safe='')}" + (f"?{query}" if query else "")


def _control_action(verb: str) -> tuple[str, str, str]:
    return verb, "control", verb


#: By cause: label, operation, and the verb of `control`. Relays have a control operation of their own.
_ACTIONS_BY_CAUSE: Final[Mapping[str, tuple[str, str, str]]] = {
    **dict.fromkeys(
        (
            "HEARTBEAT_STALE",
            "STREAM_HUNG",
            "STREAM_UNHEALTHY",
            "RESTARTS_EXHAUSTED",
            "RESTART_LOOP",
            "NOT_RESTARTED",
            "START_SLOW",
            "NO_PROGRESS",
            "BACKLOG_OLD",
            "SOURCE_EXPIRES",
            "DATA_LOSS_NEAR",
            "FEED_STALE",
        ),
        _control_action("restart"),
    ),
    **dict.fromkeys(
        ("NEVER_STARTED", "PAUSED_WITHOUT_STOP", "PAUSED_WHILE_RUNNING", "STOPPED_BY_HAND"), _control_action("start")
    ),
    # After the edit was put back, which its next step says first. A restart is refused before.
    "SPEC_CHANGE_UNSAFE": _control_action("start"),
    **dict.fromkeys(("DATA_FILE_MISSING", "DATA_FILE_UNREADABLE"), ("recover files", "recover_files", "")),
    "TABLE_SUSPENDED": ("resume", "resume_table", ""),
    "ROWS_QUARANTINED": ("replay", "replay_quarantine", ""),
    "DEAD_LETTERS": ("redrive", "redrive", ""),
    "FILES_LOST": ("reconcile", "reconcile", ""),
    "GOLD_STALE": ("build", "rebuild_gold", ""),
    "GOLD_CHECK_FAILED": ("build", "rebuild_gold", ""),
    "MUTATIONS_BEHIND": ("apply", "mutate_tables", ""),
    "TABLE_NOT_VACUUMED": ("vacuum", "vacuum_tables", ""),
    "MAINTENANCE_OVERLAP": ("optimize", "optimize_tables", ""),
    "FEED_DEAD_LETTERS": ("replay", "replay_feed", ""),
}
_JOB_CAUSES: Final = ("JOB_FAILED", "JOB_OVERDUE", "DEADLINE_MISSED")
#: Actions for failed or overdue jobs, by kind of DAG.
_ACTIONS_BY_DAG_KIND: Final[Mapping[str, tuple[str, str, str]]] = {
    "maintenance": ("optimize", "optimize_tables", ""),
    "gold": ("build", "rebuild_gold", ""),
    "mutations": ("apply", "mutate_tables", ""),
    "models": ("train", "train_model", ""),
}


def suggest_action(cause: str, subject: str, next_step: str = "") -> SuggestedAction | None:
    """Returns the action for a cause, or None.

    Args:
        subject: as named by alerts and verdicts: `stream games`, `games.events`, `games__gold`.
        next_step: text whose repair of a damaged data file goes before the action of the cause, which would fail again.
    """
    return _repair_action(subject, next_step) if _REPAIR.search(next_step) else _action_of_cause(cause, subject)


def _action_of_cause(cause: str, subject: str) -> SuggestedAction | None:
    words = [word for word in _SEPARATORS.split(subject) if word]
    if not words:
        return None
    kind, name, rest = _parse_subject(words)
    # A failed task has the name of its operation; otherwise the DAG's kind decides.
    job_action = _operation_action(rest) or _ACTIONS_BY_DAG_KIND.get(kind) or _operation_action(kind)
    action = job_action if cause in _JOB_CAUSES else _ACTIONS_BY_CAUSE.get(cause)
    if action is None and kind in ("stream", "relay") and cause in catalog().conditions:
        # The process ended with this condition. A restart skips the wait for the next try.
        action = _control_action("restart")
    if action is None or not name:
        return None
    word, operation, verb = action
    if kind == "relay" and operation == "control":
        return (
            SuggestedAction(word, form_path("control_relay", name, verb=verb)) if verb in ("start", "restart") else None
        )
    if (OPERATIONS[operation].scope == "relay") != (kind == "relay"):
        return None
    if operation == "control":
        return SuggestedAction(word, form_path("control", name, verb=verb, target="feeds" if kind == "feeds" else ""))
    options = {field.name for field in option_fields(OPERATIONS[operation].options_model())}
    table = "" if cause in _JOB_CAUSES else rest
    return SuggestedAction(
        word, form_path(operation, name, **{option: table for option in ("table", "tables") if option in options})
    )


def _repair_action(subject: str, next_step: str) -> SuggestedAction | None:
    """Returns the first command of a next step that repairs a data file as an action.

    If the step leaves pipeline and table open, the form is that of the subject's pipeline.
    """
    for command in _REPAIR.findall(next_step):
        if path := command_form_path(command):
            return SuggestedAction("recover files", path)
    kind, name, _ = _parse_subject([word for word in _SEPARATORS.split(subject) if word] or [""])
    kinds = {split_dag_id(one.dag_id(name))[1] for one in OPERATIONS.values() if one.scope == "pipeline"}
    is_pipeline = name and kind in {"stream", "pipeline", "feeds", *kinds}
    return SuggestedAction("recover files", form_path("recover_files", name)) if is_pipeline else None


def details_link(cause: str, subject: str) -> SuggestedAction:
    """Returns a link to the console page with details, for causes without an action."""
    words = [word for word in _SEPARATORS.split(subject) if word]
    if cause == "HEALTH_SILENT":
        return SuggestedAction("show the DAG", f"/dag/{quote(subject, safe='')}")
    if cause.startswith("ERASURE_") and words:
        return SuggestedAction("show the requests", f"/erasures?{urlencode({'only': words[0]})}")
    if len(words) > 1 and words[0] == "stream":
        return SuggestedAction("show the stream", f"/streams/{quote(words[1], safe='')}")
    return SuggestedAction("show the alert", f"/alerts?{urlencode({'only': subject})}")


def issue_actions(cause: str, subject: str, pipeline: str, next_step: str = "") -> tuple[SuggestedAction, ...]:
    """Returns the action of an issue, or a link with details, and the pages of its stream."""
    actions = [suggest_action(cause, subject, next_step) or details_link(cause, subject)]
    if pipeline:
        actions.append(SuggestedAction("show the stream", f"/streams/{quote(pipeline, safe='')}"))
    return tuple(dict.fromkeys(actions))


def command_actions(commands: Iterable[tuple[str, str]]) -> list[SuggestedAction]:
    """Returns links to the forms of commands, by label; commands without a form are left out."""
    return [SuggestedAction(label, path) for label, command in commands if (path := command_form_path(command))]


def _parse_subject(words: list[str]) -> tuple[str, str, str]:
    """Splits a subject into kind, name and remainder."""
    name, kind = split_dag_id(words[0])
    if kind:
        return kind, name, "/".join(words[1:])
    if words[0] in _PROCESSES:
        return words[0], words[1] if len(words) > 1 else "", "/".join(words[2:])
    return "pipeline", words[0], "/".join(words[1:])


def _operation_action(name: str) -> tuple[str, str, str] | None:
    operation = OPERATIONS.get(name)
    return None if operation is None or operation.scope != "pipeline" else (operation.command.split()[-1], name, "")


def process_actions(kind: str, name: str, state: str, suspended: Iterable[str] = ()) -> tuple[SuggestedAction, ...]:
    """Returns the actions for a stream or relay in a state.

    Args:
        suspended: tables whose commits failed. Tables that a job holds go on by themselves when it ends.
    """
    if kind not in ("stream", "relay") or state == "unknown":
        return ()
    operation = "control" if kind == "stream" else "control_relay"
    verbs = ("start",) if state in ("stopped", "paused") else ("restart", "stop")
    actions = [SuggestedAction(verb, form_path(operation, name, verb=verb)) for verb in verbs]
    if kind == "stream":
        actions += [
            SuggestedAction(f"resume {table}", form_path("resume_table", name, table=table))
            for table in suspended
            if table
        ]
    return tuple(actions)


def measure_actions(pipelines: Iterable[str]) -> tuple[SuggestedAction, ...]:
    """Returns the actions that measure the tables of pipelines now."""
    return tuple(SuggestedAction(f"measure {name} now", form_path("snapshot_health", name)) for name in pipelines)


def batch_actions(pipeline: str, batch_id: int) -> tuple[SuggestedAction, ...]:
    """Returns the actions for a batch."""
    return (
        SuggestedAction("reprocess this batch", form_path("reprocess", pipeline, batches=str(batch_id))),
        SuggestedAction("restore tables to it", form_path("restore", pipeline, to_batch=str(batch_id))),
    )


@functools.lru_cache(maxsize=4096)
def command_form_path(command: str) -> str:
    """Returns the path of the prefilled form of an operation's command; empty for other commands.

    Pages use it to show the form next to each command.
    """
    try:
        words = shlex.split(command)
    except ValueError:
        return ""
    operation = _find_operation(words[1:]) if words[:1] == ["deltaworks"] else None
    # Operations on a namespace of personal data have forms in Airflow only.
    if operation is None or operation.scope == "namespace":
        return ""
    rest = words[1 + len(operation.command.split()) :]
    if not rest or rest[0].startswith("-") or rest[0].isupper():
        return ""
    values = _parse_options(operation, rest[1:])
    return "" if values is None else form_path(operation.name, rest[0], **values)


def _find_operation(words: list[str]) -> Operation | None:
    for length in (2, 1):
        for operation in OPERATIONS.values():
            if operation.command.split() == words[:length]:
                return operation
    return None


def _parse_options(operation: Operation, words: list[str]) -> dict[str, str] | None:
    """Returns the options of a command without `dry_run`; None if a form cannot express them."""
    fields = {field.flag: field for field in option_fields(operation.options_model())}
    off_flags = {field.off_flag for field in fields.values() if field.kind == "switch"}
    positional = [field.name for field in fields.values() if field.positional]
    values: dict[str, str] = {}
    remaining = iter(words)
    for word in remaining:
        flag, sign, value = word.partition("=")
        if not word.startswith("--"):
            if not positional:
                return None
            values[positional.pop(0)] = word
        elif flag in off_flags:
            continue
        elif flag not in fields:
            return None
        elif fields[flag].kind == "switch":
            values[fields[flag].name] = "on"
        else:
            values[fields[flag].name] = value if sign else next(remaining, "")
    values.pop("dry_run", None)
    return values
