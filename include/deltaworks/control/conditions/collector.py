"""Conditions of collectors: spec, spool and process."""

from __future__ import annotations

from typing import Final

from deltaworks.control.conditions.definitions import Condition, conditions_of
from deltaworks.errors import ConcurrencyError, ConfigError, ContractError, TransientError

COLLECTOR: Final = (
    *conditions_of(
        ConfigError,
        Condition("COLLECTOR_UNKNOWN", "there is no such collector", "use the suggested name"),
        Condition(
            "COLLECTOR_WITHOUT_SPOOL",
            "a collector with `ack: sink` was started as a process",
            "declare `ack: spool`, or deploy it as a Lambda function",
            runbook="how-to/collect-over-http.md#run-a-collector",
        ),
        Condition(
            "COLLECTOR_SINK_UNDEFINED",
            "neither the sink nor its pipeline names the bucket or stream",
            "name it in the collector's file",
        ),
    ),
    *conditions_of(
        ConcurrencyError,
        Condition(
            "SPOOL_LOCKED",
            "another process uses the spool folder",
            "stop it, or use another folder",
            runbook="how-to/collect-over-http.md#the-spool",
        ),
    ),
    *conditions_of(
        ContractError,
        Condition(
            "SPOOL_SEGMENT_UNKNOWN",
            "a spool file was written by another release",
            "drain the folder with that release, or run it or a later one",
            runbook="how-to/collect-over-http.md#the-spool",
        ),
        Condition(
            "SPOOL_PROGRESS_UNREADABLE",
            "a spool's delivery progress is damaged, or of another release",
            "restore that release, or move the file away to redeliver all events",
            runbook="how-to/collect-over-http.md#the-spool",
        ),
        Condition(
            "COLLECTOR_RECORD_UNREADABLE",
            "a collector's heartbeat or count is damaged or of another release",
            "run the collector's release, or a later one",
        ),
        Condition(
            "SPOOL_FOLDER_DAMAGED",
            "the spool's identity file cannot be read",
            "restore it from a copy; or use a new folder, and drain this one",
            runbook="how-to/collect-over-http.md#the-spool",
        ),
    ),
    *conditions_of(
        TransientError,
        Condition(
            "SPOOL_FAILED",
            "the spool's disk failed two writes in a row",
            "check the disk; the process restarts, and no acknowledged event is lost",
            runbook="how-to/collect-over-http.md#the-spool",
        ),
    ),
)
