"""Specs of personal data: a pipeline's section `privacy`, and the key service and vault of an environment.

A pipeline declares its subjects, how each field is redacted, and erasure. This applies before an event is stored: the
collector redacts before its spool, the parser before columns and quarantine. `specs.privacy_checks` checks it against
the rest of the pipeline.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Final, Literal, Self

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, PrivateAttr, model_validator

from deltaworks.specs.base import (
    QUOTED_NAME,
    Name,
    Problem,
    Spec,
    TextOrReference,
    as_tuple,
    path_names,
    paths_overlap,
    raise_problems,
    selects_elements,
    suggest_name,
)
from deltaworks.specs.spec_change_effects import (
    CHANGES_MEANING,
    CHANGES_PARSING,
    NEXT_MAINTENANCE,
    Edit,
    Effect,
    OptionalSection,
)
from deltaworks.specs.storage import AwsSpec, StorageSpec


class KeyringSpec(Spec):
    """Keys in files of a local folder, readable only by its owner. For single machines and trials."""

    kind: Literal["keyring"]
    folder: TextOrReference = Field(description="created with the first key; mode 0700, files 0600")


class KmsSpec(AwsSpec):
    """An AWS KMS key, by id, ARN or alias."""

    kind: Literal["kms"]
    key_id: TextOrReference
    pending_days: int = Field(default=7, ge=7, le=30, description="waiting period of KMS before a key is destroyed")


KeyServiceSpec = Annotated[KeyringSpec | KmsSpec, Field(discriminator="kind")]


class PrivacySettings(Spec):
    """The key service and the storage of the vault.

    The vault needs a bucket of its own, without versioning and replication.
    """

    keys: KeyServiceSpec
    vault: StorageSpec


@dataclass(frozen=True, slots=True)
class VaultSchedule:
    """Schedule and time limit of a vault job, the same for Airflow and for Kubernetes CronJobs."""

    cron: str
    hours: int


#: Schedules by operation. Missed runs are not caught up, because the next run processes everything pending.
VAULT_SCHEDULES: Final[Mapping[str, VaultSchedule]] = {
    "ingest_vault": VaultSchedule("*/5 * * * *", hours=1),
    # Most runs have nothing to do: keys rotate monthly, daily tokens expire daily.
    "maintain_vault": VaultSchedule("25 3 * * *", hours=6),
    "erase": VaultSchedule("40 * * * *", hours=6),
}


Action = Literal["token", "vault", "drop", "truncate_ip"]
#: Actions that replace the value by a token.
TOKEN_ACTIONS: Final = ("token", "vault")
Scalar = bool | int | float | str

PRIVACY_CHANGE = OptionalSection(
    Edit(
        Effect.MIXED_ROWS,
        "Earlier rows contain original values and later ones tokens, or the other way round. Stop the stream, "
        "accept it with `deltaworks pipelines diff {pipeline} --accept`, restart, and convert earlier rows with "
        "`deltaworks reprocess {pipeline} --from-start`.",
    )
)
#: Applies to new requests only; stored data do not change.
ERASURE_TERMS = Edit(Effect.SAFE, "Nothing: applies to new requests.")


def _check_private_path(value: str) -> str:
    if value.startswith("$"):
        raise ValueError(
            f"a path starts with a field name and not with $: write {value.lstrip('$.') or 'email'}, or `$name` in "
            "backquotes if the name begins with it"
        )
    try:
        path_names(value)
        is_path = re.search(r"\s", QUOTED_NAME.sub("", value)) is None
    except ValueError:
        is_path = False
    if not is_path:
        raise ValueError(
            f"{value!r} is not a path: separate names by dots, and write [] after a list to select its elements, such "
            "as eventParams.friends[].name; a name with dots, brackets or spaces goes in backquotes: `user.email`"
        )
    return value


#: Dotted field path; `[]` after a name means every element of that list.
PrivatePath = Annotated[str, AfterValidator(_check_private_path)]
PrivatePaths = Annotated[tuple[PrivatePath, ...], BeforeValidator(as_tuple)]
#: Table keys: retention by date, and whether erasing a subject deletes its rows.
RetentionDays = Annotated[
    Annotated[int, Field(ge=1, description="age in days from which maintenance deletes rows, by date")] | None,
    NEXT_MAINTENANCE,
]
TableErase = Annotated[
    Literal["rows", "keep"], ERASURE_TERMS, Field(description="keep: erasing a subject keeps this table's rows")
]
EraseReason = Annotated[str, ERASURE_TERMS, Field(description="keep only: the reason, which certificates quote")]
When = dict[PrivatePath, Annotated[tuple[Scalar, ...], BeforeValidator(as_tuple)]]


class PrivateFieldSpec(Spec):
    """A field with personal data and the action that redacts it.

    - `token`: replaced by a token of its kind.
    - `vault`: replaced by a token, and the value is stored encrypted in the vault.
    - `drop`: removed.
    - `truncate_ip`: an address is reduced to its network.
    """

    model_config = ConfigDict(serialize_by_alias=True)

    path: Annotated[PrivatePath, CHANGES_MEANING]
    action: Annotated[Action, CHANGES_MEANING]
    kind: Annotated[Name | None, CHANGES_MEANING] = Field(
        default=None,
        alias="as",
        description=("token and vault only: the kind of identifier; equal values of a kind get equal tokens"),
    )

    @model_validator(mode="after")
    def _check_kind(self) -> Self:
        if self.action in TOKEN_ACTIONS and self.kind is None:
            raise_problems([(("as",), f"declare the kind of identifier, such as as: {_suggest_kind(self.path)}")])
        if self.action not in TOKEN_ACTIONS and self.kind is not None:
            raise_problems([(("as",), f"only tokens have a kind, and {self.action} creates none; remove it")])
        return self

    @property
    def name(self) -> str:
        """The key by which a private field is matched with the same field of another spec version."""
        return self.path


class ScanSpec(Spec):
    """Whether texts in undeclared fields are scanned for personal data, and whether matches are counted or dropped."""

    email: Annotated[Literal["count", "drop", "off"], CHANGES_PARSING] = "off"
    phone: Annotated[Literal["count", "drop", "off"], CHANGES_PARSING] = "off"


class ChildSpec(Spec):
    """How events of children are redacted: tokens valid for one day, no vault rows, and fewer fields."""

    when: Annotated[When, CHANGES_PARSING] = Field(min_length=1)
    tokens: Annotated[Literal["per_day", "permanent"], CHANGES_PARSING] = "per_day"
    vault: Annotated[bool, CHANGES_PARSING] = False
    drop: Annotated[PrivatePaths, CHANGES_PARSING] = ()


class OptOutSpec(Spec):
    """Which events belong to a subject who has opted out. They are counted and dropped."""

    when: Annotated[When, CHANGES_PARSING] = Field(min_length=1)
    keep: Annotated[Literal["none"], CHANGES_PARSING] = "none"


class RegulationSpec(Spec):
    """Events that the law requires to be treated differently."""

    child: Annotated[ChildSpec | None, OptionalSection(CHANGES_PARSING)] = None
    opt_out: Annotated[OptOutSpec | None, OptionalSection(CHANGES_PARSING)] = None


class EraseSpec(Spec):
    """How a subject is erased, and the deadline. Days count from receipt of the request."""

    mode: Annotated[Literal["rows", "identity"], ERASURE_TERMS] = Field(
        default="rows", description="rows: delete the subject's rows; identity: replace its tokens by random ones"
    )
    purge_within_days: Annotated[int, ERASURE_TERMS] = Field(default=21, ge=1, le=90)
    deadline_days: Annotated[int, ERASURE_TERMS] = Field(default=30, ge=1, le=90)
    landing_days: Annotated[int, NEXT_MAINTENANCE] = Field(
        default=14, ge=1, le=365, description="age after which landed objects with personal data are deleted"
    )
    landing: Annotated[Literal["rewrite", "expire"], ERASURE_TERMS] = Field(
        default="rewrite",
        description="rewrite: delete the subject's events from landed objects; expire: wait for their deletion",
    )
    unreadable_days: Annotated[int, NEXT_MAINTENANCE] = Field(
        default=14, ge=1, le=365, description="days after which the key of unreadable payloads is destroyed"
    )

    confirm_above: Annotated[int, ERASURE_TERMS] = Field(
        default=3, ge=1, le=1000, description="number of subjects above which a second person confirms a request"
    )

    @model_validator(mode="after")
    def _check_deadline(self) -> Self:
        if self.purge_within_days >= self.deadline_days:
            raise_problems(
                [
                    (
                        ("purge_within_days",),
                        f"rows are purged within {self.purge_within_days} days, and VACUUM needs days after that: "
                        f"write fewer than deadline_days ({self.deadline_days})",
                    )
                ]
            )
        return self


class PrivacySpec(Spec):
    """The personal data in a pipeline's events."""

    namespace: Annotated[Name, CHANGES_MEANING] = Field(description="scope in which equal values have equal tokens")
    subject: Annotated[PrivatePaths, CHANGES_MEANING] = Field(
        default=(), description="fields that identify the subject of an event; the first that is present counts"
    )
    fields: Annotated[tuple[PrivateFieldSpec, ...], CHANGES_MEANING] = Field(min_length=1)
    scan: ScanSpec = ScanSpec.defaults()
    regulation: RegulationSpec = RegulationSpec.defaults()
    erase: EraseSpec = EraseSpec.defaults()
    _service: PrivacySettings | None = PrivateAttr(default=None)

    @model_validator(mode="after")
    def _check_consistency(self) -> Self:
        raise_problems([*_overlap_problems(self.fields), *_subject_problems(self)])
        return self

    def __eq__(self, other: object) -> bool:
        """Compares the declarations. The bound key service and vault are ignored."""
        return isinstance(other, PrivacySpec) and dict(self) == dict(other)

    def __hash__(self) -> int:
        return hash((self.namespace, self.subject, self.fields))

    @property
    def service(self) -> PrivacySettings | None:
        """The environment's key service and vault; None if the spec was loaded without an environment."""
        return self._service

    def bind_service(self, service: PrivacySettings | None) -> None:
        """Sets the environment's key service and vault, which are not part of the pipeline's declaration."""
        self._service = service

    @property
    def kinds(self) -> tuple[str, ...]:
        """Kinds of identifiers that become tokens, sorted."""
        return tuple(sorted({field.kind for field in self.fields if field.kind is not None}))

    def field_for(self, path: str) -> PrivateFieldSpec | None:
        """Returns the private field with this path, or with its closest parent's path; None if there is none.

        List indexes are ignored: `friends.name` matches the declaration `friends[].name`.
        """
        declared = {path_names(field.path): field for field in self.fields}
        names = path_names(path)
        parents = (names[:end] for end in range(len(names), 0, -1))
        return next((declared[parent] for parent in parents if parent in declared), None)


def _suggest_kind(path: str) -> str:
    """Returns a kind of token to suggest for a path."""
    name = re.sub(r"[^a-z0-9_]", "", path_names(path)[-1].rpartition(".")[2].lower()).removesuffix("_id")
    return name if re.match(r"^[a-z]", name) else "person"


def _overlap_problems(fields: tuple[PrivateFieldSpec, ...]) -> list[Problem]:
    problems: list[Problem] = []
    for index, field in enumerate(fields):
        for other in range(index):
            if paths_overlap(path_names(field.path), path_names(fields[other].path)):
                text = f"{field.path!r} and {fields[other].path!r} overlap; remove one of them"
                problems.append((("fields", index, "path"), text, (("fields", other, "path"),)))
    return problems


def _subject_problems(privacy: PrivacySpec) -> list[Problem]:
    tokens = {field.path: field for field in privacy.fields if field.action in TOKEN_ACTIONS}
    problems: list[Problem] = []
    for index, path in enumerate(privacy.subject):
        key_path = ("subject", index) if len(privacy.subject) > 1 else ("subject",)
        if path not in tokens:
            text = f"{path!r} is not tokenized and cannot identify a subject; {suggest_name(path, tokens)}"
            problems.append((key_path, text))
        elif selects_elements(path):
            problems.append((key_path, f"{path!r} has many values, but an event has one subject: use a single field"))
    return problems
