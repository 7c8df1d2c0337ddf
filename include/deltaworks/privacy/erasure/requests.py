"""Receives erasure requests. The identifier is tokenized immediately and not stored; deadlines start at receipt."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property

from deltaworks.control.home import PipelineHome
from deltaworks.control.objects import ObjectStore
from deltaworks.control.records.erasure import ErasureRequest, Erasures
from deltaworks.errors import ConfigError
from deltaworks.privacy.erasure.person_resolution import MAX_EXAMPLES, Person, SubjectKinds, tokens_digest
from deltaworks.privacy.paths import vault_request_subjects
from deltaworks.privacy.stored_keys import namespace_token_key
from deltaworks.privacy.tokens.envelope_encryption import is_token, token
from deltaworks.privacy.vault.namespace_vault import NamespaceVault
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.privacy import EraseSpec, PrivacySpec
from deltaworks.tables.lake import Lake


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasureDeadlines:
    """Deadlines of erasures: the shortest of all pipelines of a namespace."""

    purge_within: timedelta
    deadline: timedelta

    @classmethod
    def shortest(cls, specs: Iterable[EraseSpec]) -> ErasureDeadlines:
        """Returns the shortest deadlines in these `privacy` sections."""
        declared = list(specs)
        return cls(
            purge_within=timedelta(days=min(spec.purge_within_days for spec in declared)),
            deadline=timedelta(days=min(spec.deadline_days for spec in declared)),
        )


@dataclass(frozen=True)
class Namespace:
    """A namespace of tokens: its pipelines, stores and token key. Cheap to create; not thread-safe."""

    name: str
    catalog: Catalog
    pipelines: tuple[PipelineSpec, ...]
    objects: ObjectStore
    vault: NamespaceVault
    token_key: bytes = field(repr=False)

    @cached_property
    def lake(self) -> Lake:
        """The lake with the tables of the pipelines."""
        return Lake(self.catalog.environment.lake)

    @cached_property
    def vault_lake(self) -> Lake:
        """The lake with the tables of the vault."""
        return Lake(self.vault.storage)

    @property
    def erasures(self) -> Erasures:
        """The erasure requests of the namespace."""
        return Erasures(self.objects, self.name)

    @property
    def deadlines(self) -> ErasureDeadlines:
        """The deadlines of erasures in the namespace."""
        return ErasureDeadlines.shortest(require_privacy(spec).erase for spec in self.pipelines)

    @property
    def retention(self) -> timedelta:
        """The longest VACUUM retention of the namespace's pipelines."""
        return timedelta(hours=max(spec.maintenance.file_retention_hours for spec in self.pipelines))

    @property
    def confirm_above(self) -> int:
        """The number of subjects above which a second person confirms: the smallest of the namespace's pipelines."""
        return min(require_privacy(spec).erase.confirm_above for spec in self.pipelines)

    @property
    def subject_kinds(self) -> SubjectKinds:
        """The kinds of identifiers that can be the subject of an event: persons are always the first declared ones."""
        first: set[str] = set()
        others: set[str] = set()
        for privacy in map(require_privacy, self.pipelines):
            fields = [field for path in privacy.subject if (field := privacy.field_for(path)) is not None]
            kinds = [field.kind for field in fields if field.kind is not None]
            first.update(kinds[:1])
            others.update(kind for kind in kinds[1:] if kind != kinds[0])
        return SubjectKinds(persons=frozenset(first - others), others=frozenset(others))

    def home(self, pipeline: str) -> PipelineHome:
        """Returns the control records of one of its pipelines."""
        return PipelineHome(self.objects, pipeline)


def require_privacy(spec: PipelineSpec) -> PrivacySpec:
    """Returns the `privacy` section of a pipeline.

    Raises:
        ConfigError: NAMESPACE_UNKNOWN, the pipeline declares no `privacy`.
    """
    if spec.privacy is None:
        raise ConfigError(
            "NAMESPACE_UNKNOWN",
            f"{spec.pipeline!r} declares no `privacy`.",
            hint=("Add a `privacy` section to its pipeline.yaml."),
        )
    return spec.privacy


def open_namespace(catalog: Catalog, name: str) -> Namespace:
    """Opens a namespace for erasures.

    Raises:
        ConfigError: NAMESPACE_UNKNOWN, KEY_SERVICE_UNDECLARED, KEYRING_UNUSABLE, VAULT_NOT_ISOLATED.
        ContractError, TransientError: errors of opening its keys.
    """
    pipelines = catalog.namespace(name)
    vault = NamespaceVault.open(catalog.environment, name)
    return Namespace(
        name=name,
        catalog=catalog,
        pipelines=pipelines,
        objects=vault.lake_objects,
        vault=vault,
        token_key=namespace_token_key(vault.service, vault.lake_objects, name),
    )


#: Kind of an identifier that is a token already. A token by itself is not personal data.
TOKEN_KIND = "token"  # noqa: S105  a kind, not a secret


def token_of(namespace: Namespace, *, kind: str, value: str) -> str:
    """Returns the token of an identifier.

    Raises:
        ConfigError: ERASURE_KIND_UNKNOWN, the namespace has no identifiers of this kind; ERASURE_VALUE_INVALID, the
            value is empty or not a token.
    """
    kinds = sorted({name for spec in namespace.pipelines for name in require_privacy(spec).kinds})
    if kind not in (*kinds, TOKEN_KIND):
        raise ConfigError(
            "ERASURE_KIND_UNKNOWN",
            f"The namespace {namespace.name!r} has no identifiers of the kind {kind!r}.",
            hint=f"Give one of {', '.join(kinds)}; or {TOKEN_KIND}, with the token itself.",
        )
    # Messages are logged, so they must not contain the value.
    if not value.strip() or (kind == TOKEN_KIND and not is_token(value)):
        what = "not a token" if kind == TOKEN_KIND else "empty"
        raise ConfigError("ERASURE_VALUE_INVALID", f"The value of kind {kind!r} is {what}.")
    return value if kind == TOKEN_KIND else token(namespace.token_key, kind=kind, value=value)


def receive_request(namespace: Namespace, subject: str, *, received_at: datetime, by: str) -> ErasureRequest:
    """Records an erasure request for the person of a token. Idempotent: requests of one token on one day are the same
    request.

    The token is stored in the vault first; the lake's record contains only its digest.
    """
    digest = tokens_digest([subject])
    request_id = f"e{received_at:%Y%m%d}-{digest[:10]}"
    first = Person(subjects=(subject,), tokens=(subject,))
    key = vault_request_subjects(namespace.name, request_id)
    if namespace.erasures.read(request_id) is None:
        namespace.vault.objects.put_if_absent(key, first.encode())
    terms = namespace.deadlines
    return namespace.erasures.create(
        request_id,
        received_at=received_at,
        purge_by=received_at + terms.purge_within,
        deadline_at=received_at + terms.deadline,
        digest=digest,
        by=by,
    )


def read_person(namespace: Namespace, request: ErasureRequest) -> Person:
    """Returns the person of a request, with the tokens resolved so far.

    Raises:
        ConfigError: ERASURE_SUBJECT_DELETED.
    """
    key = vault_request_subjects(namespace.name, request.request_id)
    stored = namespace.vault.objects.get(key)
    if stored is None:
        raise ConfigError(
            "ERASURE_SUBJECT_DELETED", f"The vault no longer has the person of erasure {request.request_id}."
        )
    return Person.decode(stored.data)


def write_person(namespace: Namespace, request: ErasureRequest, person: Person) -> None:
    """Stores the person of a request. Idempotent."""
    namespace.vault.objects.put(vault_request_subjects(namespace.name, request.request_id), person.encode())


def describe_person(namespace: Namespace, person: Person) -> list[str]:
    """Describes whom an erasure would erase, and whom it spares: how many subjects, with examples."""
    lines = [f"It erases {_count_subjects(namespace, person.subjects, len(person.subjects))}"]
    if person.others:
        others = _count_subjects(namespace, person.examples, person.others)
        lines.append(f"The token is shared, so it erases nothing but the token: it spares {others}")
    if person.needs_confirmation(namespace.confirm_above):
        lines.append(
            "A second person has to confirm it: "
            + ("the token is shared." if person.others else f"it has more than {namespace.confirm_above} subjects.")
        )
    return lines


def _count_subjects(namespace: Namespace, subjects: Sequence[str], number: int) -> str:
    """Returns the number of subjects, and some of them with the kinds and the first arrival of their values."""
    rows = namespace.vault.tables.identities(
        subjects=subjects[:MAX_EXAMPLES], columns=["subject", "kind", "first_seen"]
    ).to_pylist()
    lines = [f"{number:,} {'subject' if number == 1 else 'subjects'}:"]
    for subject in subjects[:MAX_EXAMPLES]:
        own = [row for row in rows if row["subject"] == subject]
        kinds = ", ".join(sorted({row["kind"] for row in own}))
        values = f"{kinds} since {min(row['first_seen'] for row in own):%Y-%m-%d}" if own else "no values in the vault"
        lines.append(f"  {subject} ({values})")
    return "\n".join([*lines, *([f"  and {number - MAX_EXAMPLES:,} more"] if number > MAX_EXAMPLES else [])])


def delete_ended_persons(namespace: Namespace) -> int:
    """Deletes the person records of ended requests, also of interrupted runs. Returns their number. Idempotent."""
    folder = vault_request_subjects(namespace.name, "").removesuffix(".json")
    deleted = 0
    for key in namespace.vault.objects.list(folder):
        request = namespace.erasures.read(key.removeprefix(folder).removesuffix(".json"))
        if request is not None and not request.is_open:
            namespace.vault.objects.delete(key)
            deleted += 1
    return deleted
