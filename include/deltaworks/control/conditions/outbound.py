"""Conditions of feeds and remediations."""

from __future__ import annotations

from typing import Final

from deltaworks.control.conditions.definitions import Condition, conditions_of
from deltaworks.errors import ConcurrencyError, ConfigError, ContractError, DeltaworksError, FencedError, TransientError

OUTBOUND_CONDITIONS: Final = (
    *conditions_of(
        ConfigError,
        Condition("FEED_UNKNOWN", "the pipeline declares no such feed", "use the suggested name"),
        Condition(
            "PIPELINE_WITHOUT_FEEDS",
            "the pipeline declares no feeds",
            "declare them under `feeds` in its pipeline.yaml",
        ),
        Condition(
            "FEED_SINK_REFUSED",
            "the sink of a feed does not exist, or rejects the login",
            "check the address under `to` and its permissions; it is retried",
        ),
        Condition(
            "FEED_REPLAY_UNBOUNDED",
            "a replay exceeds `--limit` changes",
            "choose a later delivery, or raise `--limit`",
        ),
        Condition(
            "FEED_DELIVERY_UNKNOWN",
            "the delivery to repeat is no longer stored",
            "choose one of the named deliveries, or `--everything`",
        ),
        Condition("REMEDIATION_UNKNOWN", "the environment declares no such remediation", "use the suggested name"),
    ),
    *conditions_of(
        ContractError,
        Condition(
            "FEED_POSITION_UNAVAILABLE",
            "a feed's delivered position was vacuumed, or its table recreated",
            "send all rows again: `deltaworks feeds replay PIPELINE FEED --everything --no-dry-run`",
        ),
        Condition(
            "FEED_SOURCE_UNREADABLE",
            "the view or table of a feed cannot be read",
            "run it with `deltaworks sql`, and fix its SQL",
        ),
        Condition("FEED_COLUMN_MISSING", "a feed names an unknown column", "use one of the listed columns"),
        Condition(
            "FEED_TOO_MANY_ROWS",
            "a view's result exceeds `max_rows`",
            "aggregate further, or feed a gold table",
        ),
        Condition(
            "FEED_TOO_MANY_DEAD_LETTERS",
            "a delivery has more dead letters than `max_dead_letters`",
            "read `deltaworks feeds dead-letters`, fix the receiver or raise the limit, then replay",
        ),
        Condition(
            "FEED_RECORD_UNREADABLE",
            "the position of a feed cannot be read",
            "restore it from the storage's versions",
        ),
        Condition(
            "REMEDIATION_UNREADABLE",
            "a remediation's record cannot be read",
            "check the weights, then restore or delete the object",
        ),
        Condition(
            "TRAFFIC_REFUSED",
            "the traffic API rejected a request, or returned no weights",
            "check `action.url` and `action.token`",
        ),
    ),
    *conditions_of(
        TransientError,
        Condition(
            "TRAFFIC_UNREACHABLE",
            "the traffic API did not answer",
            "nothing: it is asked again; no call is repeated",
        ),
    ),
    *conditions_of(
        ConcurrencyError,
        Condition(
            "FEED_REPLAY_PENDING",
            "another replay of the feed is already pending",
            "wait until `deltaworks feeds list` no longer shows it",
        ),
    ),
    *conditions_of(
        FencedError,
        Condition("FEED_TAKEN_OVER", "another process delivers this feed now", "nothing: the other process continues"),
        Condition(
            "REMEDIATION_TAKEN_OVER",
            "another process handles this notification now",
            "nothing: the other process continues",
        ),
    ),
    *conditions_of(
        DeltaworksError,
        Condition(
            "FEEDS_FAILED",
            "the feed process of a pipeline failed unexpectedly",
            "read the traceback in its log",
            default_retryable=True,
        ),
        Condition(
            "REMEDIATION_PROCESS_FAILED",
            "the process of a remediation failed unexpectedly",
            "read the traceback in its log",
            default_retryable=True,
        ),
    ),
)
