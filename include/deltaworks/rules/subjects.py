"""Alert subjects of rules, and the `detail` of their notifications, which consumers may rely on.

The subject of an alert is `pipeline.rule{label=value,…}` with labels in declared order. An alert for a storm has only
the grouping labels, and an alert about the rule itself has none: `pipeline.rule`. In values `%`, `,`, `=`, `{` and `}`
are percent-encoded (`%2C`); null is empty.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final
from urllib.parse import unquote

FIRING: Final = "RULE_FIRING"
UNKNOWN: Final = "RULE_UNKNOWN"
BROKEN: Final = "RULE_BROKEN"
TOO_MANY_SERIES: Final = "RULE_TOO_MANY_SERIES"
#: Label values of one series, in the order of the rule's `labels`. A label that is null in the row is None.
Labels = tuple[str | None, ...]
#: Maximum number of label sets listed in a notification.
MAX_LISTED_LABEL_SETS: Final = 50
_ESCAPES: Final = {character: f"%{ord(character):02X}" for character in "%,={}"}


def subject_of(pipeline: str, rule: str, names: Sequence[str] = (), labels: Labels = ()) -> str:
    """Returns the alert subject of a rule."""
    if not names:
        return f"{pipeline}.{rule}"
    pairs = (f"{name}={_escape(value)}" for name, value in zip(names, labels, strict=True))
    return f"{pipeline}.{rule}{{{','.join(pairs)}}}"


def parse_subject(subject: str) -> tuple[str, str, dict[str, str]]:
    """Parses a subject into pipeline, rule and labels. A null label is an empty string.

    Raises:
        ValueError: the text is not the subject of a rule.
    """
    head, bracket, rest = subject.partition("{")
    pipeline, point, rule = head.partition(".")
    if not point or not pipeline or not rule or (bracket and not rest.endswith("}")):
        raise ValueError(f"{subject!r} is not a rule's subject, such as video_qos.cdn_slow{{cdn=a}}")
    pairs = (pair.partition("=") for pair in rest[:-1].split(",") if pair)
    return pipeline, rule, {name: unquote(value) for name, _, value in pairs}


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleDetail:
    """The `detail` of a rule's notification, as plain data.

    - `title`: what the rule detects, in words.
    - `episode`: an id that all notifications of an episode share: raised, reminders, resolved.
    - `labels`: labels of the subject; `label_sets`: full label sets, for a storm all that fire.
    - `minute`: the last evaluated minute; `began`: the first minute beyond the bounds; `fired`: the minute that fired.
    - `value`, `baseline`, `spread`: of the worst label set, in the value's unit.
    - `data_until`: time of the newest data; `annotations`: annotations of the day before.
    """

    pipeline: str
    rule: str
    episode: str
    labels: Mapping[str, str | None]
    title: str = ""
    label_sets: Sequence[Mapping[str, str | None]] = ()
    label_sets_count: int = 1
    minute: str = ""
    began: str = ""
    fired: str = ""
    value: float | None = None
    samples: float | None = None
    baseline: float | None = None
    spread: float | None = None
    bounds: str = ""
    reads: Sequence[str] = ()
    data_until: str = ""
    annotations: Sequence[str] = ()
    next_step: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Returns the detail as plain data."""
        return asdict(self)


def _escape(value: str | None) -> str:
    return "".join(_ESCAPES.get(character, character) for character in value or "")
