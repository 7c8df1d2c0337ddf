"""Conditions of what is handed to others and of what acts by itself: feeds and remediations."""

from __future__ import annotations

from typing import Final

from deltaworks.control.conditions.definitions import Condition, conditions_of
from deltaworks.errors import ConcurrencyError, ConfigError, ContractError, DeltaworksError, FencedError, TransientError

OUTBOUND_CONDITIONS: Final = (
    *conditions_of(
        ConfigError,
        Condition("FEED_UNKNOWN", "the pipeline declares no such feed", "use the nearest one that is given"),
        Condition(
            "PIPELINE_WITHOUT_FEEDS",
            "the pipeline declares no feeds",
            "declare them under `feeds` in its pipeline.yaml",
        ),
        Condition(
            "FEED_SINK_REFUSED",
            "where a feed delivers to is not there, or takes nothing from us",
            "check the address under `to`, and who may write there; the feed goes on by itself",
        ),
        Condition(
            "FEED_REPLAY_UNBOUNDED",
            "a replay would send more changes than --limit",
            "choose a later delivery, or a larger --limit",
        ),
        Condition(
            "FEED_DELIVERY_UNKNOWN",
            "the delivery to repeat is not on record any more",
            "choose one of those that are named, or --everything",
        ),
        Condition(
            "REMEDIATION_UNKNOWN", "the environment declares no such remediation", "use the nearest one that is given"
        ),
    ),
    *conditions_of(
        ContractError,
        Condition(
            "FEED_POSITION_UNAVAILABLE",
            "what a feed delivered last can be read no more: files were vacuumed, or the table recreated",
            "send every row anew: `deltaworks feeds replay PIPELINE FEED --everything --no-dry-run`",
        ),
        Condition(
            "FEED_SOURCE_UNREADABLE",
            "the view or table that a feed reads cannot be read",
            "ask for it by `deltaworks sql`, and mend its SQL",
        ),
        Condition("FEED_COLUMN_MISSING", "a feed names a column that is not there", "use one of those that are listed"),
        Condition(
            "FEED_TOO_MANY_ROWS",
            "the answer of a view has more rows than `most_rows`",
            "aggregate further, or feed a gold table",
        ),
        Condition(
            "FEED_TOO_MANY_DEAD_LETTERS",
            "more changes of one delivery are dead letters than `max_dead_letters`",
            "read why by `deltaworks feeds dead`, mend the receiver, raise the bound, and replay",
        ),
        Condition(
            "FEED_RECORD_UNREADABLE",
            "the object that says where a feed is cannot be read",
            "restore it from the storage's versions",
        ),
        Condition(
            "REMEDIATION_UNREADABLE",
            "a record of a remediation cannot be read",
            "see what the weights are, restore the object or delete it",
        ),
        Condition(
            "TRAFFIC_REFUSED", "the address that carries weights refused, or told none", "check `do.url` and `do.token`"
        ),
    ),
    *conditions_of(
        TransientError,
        Condition(
            "TRAFFIC_UNREACHABLE",
            "the address that carries weights gave no answer",
            "nothing: it is asked again, and no call is repeated",
        ),
    ),
    *conditions_of(
        ConcurrencyError,
        Condition(
            "FEED_REPLAY_PENDING",
            "another replay of the feed is asked for already",
            "wait until `deltaworks feeds list` shows it gone",
        ),
    ),
    *conditions_of(
        FencedError,
        Condition("FEED_TAKEN_OVER", "another process delivers this feed now", "nothing: the other one goes on"),
        Condition(
            "REMEDIATION_TAKEN_OVER", "another process works on this notification now", "nothing: the other one goes on"
        ),
    ),
    *conditions_of(
        DeltaworksError,
        Condition(
            "FEEDS_FAILED",
            "the process of a pipeline's feeds failed in a way nobody foresaw",
            "read the traceback in its log",
            default_retryable=True,
        ),
        Condition(
            "REMEDIATION_PROCESS_FAILED",
            "the process of a remediation failed in a way nobody foresaw",
            "read the traceback in its log",
            default_retryable=True,
        ),
    ),
)
