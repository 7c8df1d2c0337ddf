"""One organisation over time: which contacts it has, what they do, and the change requests about them."""

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
#: The operations of requests, with their shares.
_KINDS = (
    ("rename", 0.40),
    ("rename_name", 0.62),
    ("update", 0.80),
    ("delete", 0.88),
    ("merge", 0.96),
    ("undelete", 1.0),
)
_REMEMBERED = 64


@dataclass(frozen=True, slots=True)
class Activity:
    """Something a contact did. `at_ms` is its time in milliseconds since 1970."""

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
    """A change request. `seq` grows with each request of an organisation."""

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
    """Makes activities and requests of one organisation, in order of time. It knows as much of ids as a
    producer would: that only decides which ids requests name, and no answer depends on it."""

    org_id: str
    settings: EngagementSettings
    rng: Random
    _ids: list[str] = field(default_factory=list)
    _left: deque[str] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))
    _renamed: deque[str] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))
    _deleted: deque[str] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))
    _contacts: int = 0
    _activities: int = 0
    _seq: int = 0

    def activity(self, at_ms: int) -> Activity:
        """The next activity."""
        random = self.rng.random
        roll = random()
        if not self._ids or roll < self.settings.new_contacts:
            contact = self._new_contact()
        elif self._left and roll > 1 - self.settings.rates.stale:
            contact = self._left[int(random() * len(self._left))]
        else:
            place = random()
            contact = self._ids[int(place * place * len(self._ids))]
        self._activities += 1
        return Activity(
            at_ms,
            self.org_id,
            self._activities,
            contact,
            f"t{int(random() * TEMPLATES)}",
            ACTIVITY_TYPES[int(random() * len(ACTIVITY_TYPES))],
            CHANNELS[int(random() * len(CHANNELS))],
            f"l{int(random() * 1000)}" if random() < 0.3 else None,
            int(random() * 900),
        )

    def requests(self, at_ms: int) -> list[Request]:
        """The next requests: one, or two of one time."""
        rng, rates = self.rng, self.settings.rates
        if not self._ids or rng.random() < rates.before_target:
            return [self._about_nobody(at_ms)]
        roll = rng.random()
        kind = next(name for name, bound in _KINDS if roll < bound)
        moves = {"rename": self._rename, "merge": self._merge, "delete": self._delete, "undelete": self._undelete}
        if kind in moves:
            return moves[kind](at_ms)
        contact_id = self._ids[self._some()]
        if kind == "update":
            return [self._request(at_ms, "update", contact_id, template_id=f"u{int(rng.random() * TEMPLATES)}")]
        name = f"{FIRST_NAMES[int(rng.random() * 10)]} {LAST_NAMES[int(rng.random() * 10)]}"
        return [self._request(at_ms, "rename_name", contact_id, name=name)]

    def again(self, request: Request) -> Request:
        """The same request once more, under a `seq` of its own."""
        return self._request(
            request.at_ms, request.op, request.id, request.new_id, name=request.name, template_id=request.template_id
        )

    def _request(
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
        if self._left and self.rng.random() < self.settings.rates.reused:
            contact = self._left[int(self.rng.random() * len(self._left))]
        else:
            contact = self._fresh()
        self._ids.append(contact)
        return contact

    def _fresh(self) -> str:
        self._contacts += 1
        return f"c{self._contacts:x}"

    def _some(self) -> int:
        """The place of an id, of a recently renamed one as often as is set."""
        if self._renamed and self.rng.random() < self.settings.rates.cascades:
            recent = self._renamed[-1 - int(self.rng.random() * min(4, len(self._renamed)))]
            for place in range(len(self._ids) - 1, max(-1, len(self._ids) - 50), -1):
                if self._ids[place] == recent:
                    return place
        return int(self.rng.random() * len(self._ids))

    def _rename(self, at_ms: int) -> list[Request]:
        rng, rates = self.rng, self.settings.rates
        place = self._some()
        old = self._ids[place]
        roll = rng.random()
        if roll < rates.self_renames:
            return [self._request(at_ms, "rename", old, old)]
        if roll < rates.self_renames + rates.swaps and len(self._ids) > 1:
            other = self._ids[int(rng.random() * len(self._ids))]
            return [self._request(at_ms, "rename", old, other), self._request(at_ms, "rename", other, old)]
        if self._left and rng.random() < rates.cycles:
            new = self._left[int(rng.random() * len(self._left))]
        else:
            new = self._fresh()
        self._ids[place] = self._ids[-1]
        self._ids[-1] = new
        self._left.append(old)
        self._renamed.append(new)
        return self._tied(at_ms, old, self._request(at_ms, "rename", old, new))

    def _delete(self, at_ms: int) -> list[Request]:
        place = self._some()
        gone = self._ids[place]
        self._ids[place] = self._ids[-1]
        self._ids.pop()
        self._deleted.append(gone)
        return self._tied(at_ms, gone, self._request(at_ms, "delete", gone))

    def _undelete(self, at_ms: int) -> list[Request]:
        if not self._deleted:
            return [self._about_nobody(at_ms)]
        back = self._deleted[int(self.rng.random() * len(self._deleted))]
        self._ids.append(back)
        return [self._request(at_ms, "undelete", back)]

    def _merge(self, at_ms: int) -> list[Request]:
        place = self._some()
        source, target = self._ids[place], self._ids[int(self.rng.random() * len(self._ids))]
        if source != target:
            self._ids[place] = self._ids[-1]
            self._ids.pop()
            self._left.append(source)
            self._renamed.append(target)
        return [self._request(at_ms, "merge", source, target)]

    def _tied(self, at_ms: int, contact_id: str, request: Request) -> list[Request]:
        """The request, at times with another move of the same id at the same time, which has the greater `seq`."""
        if self.rng.random() >= self.settings.rates.ties:
            return [request]
        return [request, self._request(at_ms, "rename", contact_id, self._fresh())]

    def _about_nobody(self, at_ms: int) -> Request:
        """About an id that the contact after next may get."""
        future = f"c{self._contacts + 2:x}"
        if self.rng.random() < 0.5:
            return self._request(at_ms, "rename", future, self._fresh())
        return self._request(at_ms, "update", future, template_id="u0")
