"""Compares a backtest with known incidents: detections, delays and false alarms."""

from __future__ import annotations

import csv
import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from deltaworks.control.clock import parse_iso
from deltaworks.errors import ConfigError
from deltaworks.rules.backtest import Backtest
from deltaworks.rules.evaluation import Episode, minute_start


@dataclass(frozen=True, slots=True)
class Incident:
    """A known incident. It has labels if only some series were affected."""

    since: dt.datetime
    until: dt.datetime
    labels: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Detection:
    """An incident and the first episode that detected it, or None.

    `delay_minutes` is the time from the start of the incident to the first notification.
    """

    incident: Incident
    episode: Episode | None
    delay_minutes: float | None


def read_incidents(file: Path) -> list[Incident]:
    """Reads incidents from a CSV file with the columns `from`, `to`, and one per label.

    Raises:
        ConfigError: INCIDENTS_INVALID, with the line.
    """
    try:
        with file.open(encoding="utf-8", newline="") as opened:
            rows = list(csv.DictReader(opened))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise _invalid_error(file, 1, str(error)) from error
    incidents = []
    for line, row in enumerate(rows, start=2):
        since, until = (_parse_time(file, line, row, name) for name in ("from", "to"))
        if since >= until:
            raise _invalid_error(file, line, "`from` is not before `to`")
        labels = {name: value for name, value in row.items() if name not in ("from", "to", None) and value}
        incidents.append(Incident(since, until, labels))
    return incidents


def detections(result: Backtest, incidents: Sequence[Incident]) -> tuple[list[Detection], list[Episode]]:
    """Matches episodes to incidents; returns the detections and the false alarms.

    An episode matches an incident if their times overlap and their labels agree; it can match several.
    """
    detected = []
    false_alarms = [
        episode for episode in result.episodes if not any(_matches(result, episode, one) for one in incidents)
    ]
    for incident in incidents:
        matching = [episode for episode in result.episodes if _matches(result, episode, incident)]
        first = min(matching, key=lambda episode: episode.fired, default=None)
        delay = None if first is None else (result.evaluated_at(first.fired) - incident.since).total_seconds() / 60
        detected.append(Detection(incident, first, delay))
    return detected, false_alarms


def _matches(result: Backtest, episode: Episode, incident: Incident) -> bool:
    names = result.rule.labels
    if any(name in names and episode.labels[names.index(name)] != value for name, value in incident.labels.items()):
        return False
    ended = dt.datetime.max.replace(tzinfo=dt.UTC) if episode.ended is None else minute_start(episode.ended)
    return minute_start(episode.began) < incident.until and ended > incident.since


def _parse_time(file: Path, line: int, row: Mapping[str, str | None], name: str) -> dt.datetime:
    text = (row.get(name) or "").strip()
    try:
        at = parse_iso(text)
    except ValueError:
        at = None
    if at is None:
        raise _invalid_error(file, line, f"`{name}` is {text!r}; write a time such as 2026-03-01T22:56")
    return at


def _invalid_error(file: Path, line: int, problem: str) -> ConfigError:
    return ConfigError("INCIDENTS_INVALID", f"{file}:{line}: {problem}.")
