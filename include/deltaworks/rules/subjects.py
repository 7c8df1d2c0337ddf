"""What a rule's alerts are called, and the form of their notifications, which others act on.

The subject of an alert is `pipeline.rule{label=value,…}`, its labels in the order that the rule declares them; of a
storm those that its label sets share; of the rule itself `pipeline.rule`. Within values `%`, `,`, `=`, `{` and `}` are
written as in addresses (`%2C`), and null is written as nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final
from urllib.parse import unquote

FIRING: Final = "RULE_FIRING"
UNKNOWN: Final = "RULE_UNKNOWN"
BROKEN: Final = "RULE_BROKEN"
TOO_WIDE: Final = "RULE_TOO_MANY_SERIES"
#: Labels of one figure: in the order of the rule's `labels`, null where the answer has none.
Labels = tuple[str | None, ...]
#: Label sets that a notification lists; of more it says how many there are.
MAX_LISTED_LABEL_SETS: Final = 50
_ESCAPES: Final = {character: f"%{ord(character):02X}" for character in "%,={}"}


def subject_of(pipeline: str, rule: str, names: Sequence[str] = (), labels: Labels = ()) -> str:
    """The subject of a rule's alert."""
    if not names:
        return f"{pipeline}.{rule}"
    pairs = (f"{name}={_escape(value)}" for name, value in zip(names, labels, strict=True))
    return f"{pipeline}.{rule}{{{','.join(pairs)}}}"


def parse_subject(subject: str) -> tuple[str, str, dict[str, str]]:
    """Pipeline, rule and labels of a subject; a label that was null is the empty text.

    Raises:
        ValueError: it is no subject of a rule.
    """
    head, bracket, rest = subject.partition("{")
    pipeline, point, rule = head.partition(".")
    if not point or not pipeline or not rule or (bracket and not rest.endswith("}")):
        raise ValueError(f"{subject!r} is no subject of a rule, such as video_qos.cdn_slow{{cdn=a}}")
    pairs = (pair.partition("=") for pair in rest[:-1].split(",") if pair)
    return pipeline, rule, {name: unquote(value) for name, _, value in pairs}


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleDetail:
    """The field `detail` of a notification of a rule: plain data for whoever acts on it.

    `episode` is one for all notifications of one episode, whoever judges and however often: raised, reminders, resolved.
    `labels` has those of the subject; `label_sets` lists whole ones, of a storm all that fire. `minute` is the minute
    judged last, `began` the first one beyond the bounds, `fired` the one from which people are told. `value`,
    `baseline` and `spread` are in the figure's own unit, of the worst label set. `data_to` is how far the data reach.
    `before` lists what was annotated in the day before.
    """

    pipeline: str
    rule: str
    episode: str
    labels: Mapping[str, str | None]
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
        """The detail as plain data."""
        return asdict(self)


def _escape(value: str | None) -> str:
    return "".join(_ESCAPES.get(character, character) for character in value or "")
