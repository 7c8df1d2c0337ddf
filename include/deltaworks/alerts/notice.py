"""A notice: the message to people about one alert at one time."""

from __future__ import annotations

import dataclasses
import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from deltaworks.alerts.state import NoticeKind
from deltaworks.control.clock import utc_now
from deltaworks.specs.environment import Severity

#: SNS takes no more in a subject, and SQS little more than this in a message.
SUBJECT_LENGTH = 100
DETAIL_LENGTH = 4_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """One message. `id` is one per notice, whoever sends it and however often; ids sort by time.

    `changes` is how often the alert has opened or ended since the notice before: more than one where it flaps.
    """

    id: str
    kind: NoticeKind
    cause: str
    subject: str
    severity: Severity
    summary: str
    detail: Mapping[str, Any]
    runbook: str
    since: str
    at: str
    changes: int = 0

    @property
    def title(self) -> str:
        """One line for people, such as a mail's subject."""
        word = {"raised": self.severity, "escalated": self.severity, "reminder": f"still {self.severity}"}
        text = f"[{word.get(self.kind, 'resolved')}] {self.cause} {self.subject}"
        return " ".join(text.encode("ascii", "replace").decode().split())[:SUBJECT_LENGTH]

    @property
    def text(self) -> str:
        """The notice for people: what, since when, what to do."""
        lines = [self.summary, f"Since {self.since}."]
        if self.changes > 1:
            lines.append(f"It has changed {self.changes} times since the last notice.")
        if self.kind != "resolved":
            lines.append(f"Runbook: {self.runbook}")
        return "\n".join(lines)

    def record(self) -> dict[str, Any]:
        """The notice as plain data, with its texts first, as channels send it."""
        return {"title": self.title, "text": self.text, **dataclasses.asdict(self)}

    def encode(self) -> bytes:
        return json.dumps(dataclasses.asdict(self)).encode()

    @classmethod
    def decode(cls, data: bytes | str) -> Notice:
        """What `encode` wrote. Unknown keys are ignored."""
        record = json.loads(data)
        return cls(**{name: record[name] for name in cls.__slots__ if name in record})


def notice_id(at: datetime) -> str:
    """A unique id that sorts by time."""
    return f"{at:%Y%m%dT%H%M%S%f}-{uuid.uuid4().hex[:12]}"


def fitting(detail: Mapping[str, Any]) -> dict[str, Any]:
    """The detail as plain data that fits into a message: long texts are cut, with their length."""
    plain: dict[str, Any] = json.loads(json.dumps(detail, default=str))
    for name, value in plain.items():
        text = value if isinstance(value, str) else json.dumps(value)
        if len(text) > DETAIL_LENGTH:
            plain[name] = f"{text[:DETAIL_LENGTH]}… ({len(text)} characters)"
    return plain


def trial_notice() -> Notice:
    """A notice that says that it is a trial."""
    now = utc_now()
    return Notice(
        id=notice_id(now),
        kind="raised",
        cause="CHANNEL_FAILING",
        subject="trial",
        severity="critical",
        summary="This is a trial: nothing is wrong, and notices reach you.",
        detail={},
        runbook="alerts.md#channels",
        since=now.isoformat(timespec="seconds"),
        at=now.isoformat(timespec="milliseconds"),
    )
