"""Simulates one organisation over time: its contacts, their activities, and change requests."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from random import Random

from generator.engagement_settings import EngagementSettings

ACTIVITY_TYPES = ("email_open", "email_click", "email_reply", "call", "meeting", "page_view", "form_fill")
CHANNELS = ("email", "phone", "web", "event")
FIRST_NAMES = ("Ada", "Alan", "Barbara", "Edsger", "Frances", "Grace", "Hedy", "Katherine", "Linus", "Margaret")
LAST_NAMES = ("Allen", "Dijkstra", "Hamilton", "Hopper", "Johnson", "Lamarr", "Liskov", "Lovelace", "Turing", "Wirth")
TEMPLATES = 40
#: Operations of requests, with cumulative shares.
_OPERATION_BOUNDS = (
    ("rename", 0.40),
    ("rename_name", 0.62),
    ("update", 0.80),
    ("delete", 0.88),
    ("merge", 0.96),
    ("undelete", 1.0),
)
_MAX_RECENT_IDS = 64


@dataclass(frozen=True, slots=True)
class Activity:
    """An action of a contact. `at_ms` is its time in milliseconds since 1970."""

    at_ms: int
    org_id: str
    number: int
    contact_id: str
    template_id: str
    activity_type: str
    channel: str
    lead_id: str | None
    duration_seconds: int

    @property
    def event_id(self) -> str:
        return f"a-{self.org_id}-{self.number:x}"


@dataclass(frozen=True, slots=True)
class Request:
    """A change request. `seq` increases with each request of an organisation."""

    at_ms: int
    org_id: str
    seq: int
    op: str
    id: str
    new_id: str | None = None
    name: str | None = None
    template_id: str | None = None

    @property
    def event_id(self) -> str:
        return f"r-{self.org_id}-{self.seq:x}"


@dataclass(slots=True)
class Organisation:
    """Generates activities and requests of one organisation, in order of time. The ids it remembers only select ids for
    requests; the expected results are computed separately.
    """

    org_id: str
    settings: EngagementSettings
    rng: Random
    _active_ids: list[str] = field(default_factory=list)
    _former_ids: deque[str] = field(default_factory=lambda: deque(maxlen=_MAX_RECENT_IDS))
    _rename_targets: deque[str] = field(default_factory=lambda: deque(maxlen=_MAX_RECENT_IDS))
    _deleted_ids: deque[str] = field(default_factory=lambda: deque(maxlen=_MAX_RECENT_IDS))
    _contact_count: int = 0
    _activity_count: int = 0
    _seq: int = 0

    def activity(self, at_ms: int) -> Activity:
        """Generates the next activity."""
        random = self.rng.random
        roll = random()
        if not self._active_ids or roll < self.settings.new_contacts:
            contact = self._new_contact()
        elif self._former_ids and roll > 1 - self.settings.rates.stale_ids:
            contact = self._former_ids[int(random() * len(self._former_ids))]
        else:
            position = random()
            contact = self._active_ids[int(position * position * len(self._active_ids))]
        self._activity_count += 1
        return Activity(
            at_ms,
            self.org_id,
            self._activity_count,
            contact,
            f"t{int(random() * TEMPLATES)}",
            ACTIVITY_TYPES[int(random() * len(ACTIVITY_TYPES))],
            CHANNELS[int(random() * len(CHANNELS))],
            f"l{int(random() * 1000)}" if random() < 0.3 else None,
            int(random() * 900),
        )

    def requests(self, at_ms: int) -> list[Request]:
        """Generates the next requests: one, or two at the same time (a swap or a tie)."""
        rng, rates = self.rng, self.settings.rates
        if not self._active_ids or rng.random() < rates.unknown_targets:
            return [self._request_for_future_id(at_ms)]
        roll = rng.random()
        kind = next(name for name, bound in _OPERATION_BOUNDS if roll < bound)
        moves = {"rename": self._rename, "merge": self._merge, "delete": self._delete, "undelete": self._undelete}
        if kind in moves:
            return moves[kind](at_ms)
        contact_id = self._active_ids[self._random_index()]
        if kind == "update":
            return [self._create_request(at_ms, "update", contact_id, template_id=f"u{int(rng.random() * TEMPLATES)}")]
        name = f"{FIRST_NAMES[int(rng.random() * 10)]} {LAST_NAMES[int(rng.random() * 10)]}"
        return [self._create_request(at_ms, "rename_name", contact_id, name=name)]

    def repeat_request(self, request: Request) -> Request:
        """Returns the same request with a new `seq`."""
        return self._create_request(
            request.at_ms, request.op, request.id, request.new_id, name=request.name, template_id=request.template_id
        )

    def _create_request(
        self,
        at_ms: int,
        op: str,
        contact_id: str,
        new_id: str | None = None,
        *,
        name: str | None = None,
        template_id: str | None = None,
    ) -> Request:
        self._seq += 1
        return Request(at_ms, self.org_id, self._seq, op, contact_id, new_id, name, template_id)

    def _new_contact(self) -> str:
        if self._former_ids and self.rng.random() < self.settings.rates.reused_ids:
            contact = self._former_ids[int(self.rng.random() * len(self._former_ids))]
        else:
            contact = self._next_id()
        self._active_ids.append(contact)
        return contact

    def _next_id(self) -> str:
        self._contact_count += 1
        return f"c{self._contact_count:x}"

    def _random_index(self) -> int:
        """Returns the index of a random active id, or, with probability `cascades`, of a recent rename target."""
        if self._rename_targets and self.rng.random() < self.settings.rates.cascades:
            recent = self._rename_targets[-1 - int(self.rng.random() * min(4, len(self._rename_targets)))]
            for index in range(len(self._active_ids) - 1, max(-1, len(self._active_ids) - 50), -1):
                if self._active_ids[index] == recent:
                    return index
        return int(self.rng.random() * len(self._active_ids))

    def _rename(self, at_ms: int) -> list[Request]:
        rng, rates = self.rng, self.settings.rates
        index = self._random_index()
        old_id = self._active_ids[index]
        roll = rng.random()
        if roll < rates.self_renames:
            return [self._create_request(at_ms, "rename", old_id, old_id)]
        if roll < rates.self_renames + rates.swaps and len(self._active_ids) > 1:
            other_id = self._active_ids[int(rng.random() * len(self._active_ids))]
            return [
                self._create_request(at_ms, "rename", old_id, other_id),
                self._create_request(at_ms, "rename", other_id, old_id),
            ]
        if self._former_ids and rng.random() < rates.cycles:
            new_id = self._former_ids[int(rng.random() * len(self._former_ids))]
        else:
            new_id = self._next_id()
        self._active_ids[index] = self._active_ids[-1]
        self._active_ids[-1] = new_id
        self._former_ids.append(old_id)
        self._rename_targets.append(new_id)
        return self._with_tie(at_ms, old_id, self._create_request(at_ms, "rename", old_id, new_id))

    def _delete(self, at_ms: int) -> list[Request]:
        index = self._random_index()
        deleted_id = self._active_ids[index]
        self._active_ids[index] = self._active_ids[-1]
        self._active_ids.pop()
        self._deleted_ids.append(deleted_id)
        return self._with_tie(at_ms, deleted_id, self._create_request(at_ms, "delete", deleted_id))

    def _undelete(self, at_ms: int) -> list[Request]:
        if not self._deleted_ids:
            return [self._request_for_future_id(at_ms)]
        restored_id = self._deleted_ids[int(self.rng.random() * len(self._deleted_ids))]
        self._active_ids.append(restored_id)
        return [self._create_request(at_ms, "undelete", restored_id)]

    def _merge(self, at_ms: int) -> list[Request]:
        index = self._random_index()
        source, target = self._active_ids[index], self._active_ids[int(self.rng.random() * len(self._active_ids))]
        if source != target:
            self._active_ids[index] = self._active_ids[-1]
            self._active_ids.pop()
            self._former_ids.append(source)
            self._rename_targets.append(target)
        return [self._create_request(at_ms, "merge", source, target)]

    def _with_tie(self, at_ms: int, contact_id: str, request: Request) -> list[Request]:
        """Returns the request and, with probability `ties`, a second move of the same id at the same time with a
        greater `seq`.
        """
        if self.rng.random() >= self.settings.rates.ties:
            return [request]
        return [request, self._create_request(at_ms, "rename", contact_id, self._next_id())]

    def _request_for_future_id(self, at_ms: int) -> Request:
        """Creates a request for an id that the contact after next may get."""
        future_id = f"c{self._contact_count + 2:x}"
        if self.rng.random() < 0.5:
            return self._create_request(at_ms, "rename", future_id, self._next_id())
        return self._create_request(at_ms, "update", future_id, template_id="u0")
