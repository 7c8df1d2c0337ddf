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
            "a collector with `ack: sink` was started as a process, which acknowledges from its spool",
            "declare `ack: spool`, or deploy it as a Lambda function",
            runbook="how-to/collect-over-http.md#running-it",
        ),
        Condition(
            "COLLECTOR_SINK_UNDEFINED",
            "neither the sink nor its source's pipeline names the bucket or stream",
            "name it in the collector's file",
        ),
    ),
    *conditions_of(
        ConcurrencyError,
        Condition(
            "SPOOL_LOCKED",
            "another process uses the spool folder",
            "stop it, or use another folder; processes never share one",
            runbook="how-to/collect-over-http.md#the-spool",
        ),
    ),
    *conditions_of(
        ContractError,
        Condition(
            "SPOOL_SEGMENT_UNKNOWN",
            "a spool file was written by another release",
            "drain the folder with that release, or run that release or a later one",
            runbook="how-to/collect-over-http.md#the-spool",
        ),
        Condition(
            "SPOOL_PROGRESS_UNREADABLE",
            "the delivery progress of a spool cannot be read: damaged, or written by another release",
            "restore that release; or move the file away, and all events in the folder are delivered again",
            runbook="how-to/collect-over-http.md#the-spool",
        ),
        Condition(
            "COLLECTOR_RECORD_UNREADABLE",
            "a heartbeat or count of a collector is damaged or of another release",
            "run the collector's release, or a later one",
        ),
        Condition(
            "SPOOL_FOLDER_DAMAGED",
            "the spool file that names the collector or its sources cannot be read",
            "restore it from a copy; or use a new folder, and drain this one",
            runbook="how-to/collect-over-http.md#the-spool",
        ),
    ),
    *conditions_of(
        TransientError,
        Condition(
            "SPOOL_FAILED",
            "the spool's disk failed two writes in a row",
            "check the disk; the process restarts by itself, and no acknowledged event is affected",
            runbook="how-to/collect-over-http.md#the-spool",
        ),
    ),
)
