"""Conditions of the collector: its declaration, its spool and its process."""

from __future__ import annotations

from typing import Final

from deltaworks.control.conditions.definitions import Condition, conditions_of
from deltaworks.errors import ConcurrencyError, ConfigError, ContractError, TransientError

COLLECTOR: Final = (
    *conditions_of(
        ConfigError,
        Condition("COLLECTOR_UNKNOWN", "there is no such collector", "use the nearest one that is given"),
        Condition(
            "COLLECTOR_WITHOUT_SPOOL",
            "a collector declares `ack: sink` and is run as a process, which answers from its spool",
            "write `ack: spool`, or run it as a Lambda",
            runbook="how-to/collect-over-http.md#running-it",
        ),
        Condition(
            "COLLECTOR_SINK_UNDEFINED",
            "neither a sink nor the pipeline of its source says which bucket or stream is meant",
            "name it in the collector's file",
        ),
    ),
    *conditions_of(
        ConcurrencyError,
        Condition(
            "SPOOL_LOCKED",
            "another process has the folder of the spool",
            "end it, or give this process a folder of its own; two never share one",
            runbook="how-to/collect-over-http.md#the-spool",
        ),
    ),
    *conditions_of(
        ContractError,
        Condition(
            "SPOOL_SEGMENT_UNKNOWN",
            "a file of the spool was written by another release",
            "let that release drain the folder, or run it or a later one",
            runbook="how-to/collect-over-http.md#the-spool",
        ),
        Condition(
            "SPOOL_PROGRESS_UNREADABLE",
            "what of a spool is delivered cannot be read: damaged, or written by another release",
            "put back that release; or move the file away, and what is in the folder is delivered once more",
            runbook="how-to/collect-over-http.md#the-spool",
        ),
        Condition(
            "COLLECTOR_RECORD_UNREADABLE",
            "a heartbeat or count of a collector is of another release, or torn",
            "run the release that the collector runs, or a later one",
        ),
        Condition(
            "SPOOL_FOLDER_DAMAGED",
            "a file of the spool's folder that names the collector or its sources cannot be read",
            "put it back from a copy; a new folder begins a new collector, and leaves this one to be drained",
            runbook="how-to/collect-over-http.md#the-spool",
        ),
    ),
    *conditions_of(
        TransientError,
        Condition(
            "SPOOL_FAILED",
            "the disk of the spool did not take two groups of events in a row",
            "look at the disk; the process starts again by itself, and no answered event depends on it",
            runbook="how-to/collect-over-http.md#the-spool",
        ),
    ),
)
