"""Takes a request in: its value becomes a token at once and is not kept; deadlines count from its receipt."""

from __future__ import annotations

from datetime import datetime

from deltaworks.control import erasure_paths
from deltaworks.control.records.erasure import ErasureRequest
from deltaworks.erasure.namespace import Namespace, require_privacy
from deltaworks.erasure.person_resolution import Person, tokens_digest
from deltaworks.errors import ConfigError
from deltaworks.privacy.tokens import is_token, token

#: A token may be given as it is: whoever has one has no value to hide.
TOKEN_KIND = "token"  # noqa: S105  the name of a kind


def token_of(namespace: Namespace, *, kind: str, value: str) -> str:
    """The token of an identifier that a person gave.

    Raises:
        ConfigError: ERASURE_KIND, the namespace has no identifiers of this kind; ERASURE_VALUE, it is empty, or no
            token where one is given.
    """
    kinds = sorted({name for spec in namespace.pipelines for name in require_privacy(spec).kinds})
    if kind not in (*kinds, TOKEN_KIND):
        raise ConfigError(
            "ERASURE_KIND",
            f"The namespace {namespace.name!r} has no identifiers of the kind {kind!r}.",
            hint=f"Give one of {', '.join(kinds)}; or {TOKEN_KIND}, with the token itself.",
        )
    # The value is in no message: these are logged.
    if not value.strip() or (kind == TOKEN_KIND and not is_token(value)):
        what = "no token" if kind == TOKEN_KIND else "empty"
        raise ConfigError("ERASURE_VALUE", f"The value of the kind {kind!r} is {what}.", hint="Give it with `--value`.")
    return value if kind == TOKEN_KIND else token(namespace.token_key, kind=kind, value=value)


def receive_request(namespace: Namespace, subject: str, *, received_at: datetime, by: str) -> ErasureRequest:
    """Note the request of whoever a token is of. Idempotent: the same token and day are the same request.

    The token goes to the vault, before the request is on record in the lake, which has its digest.
    """
    digest = tokens_digest([subject])
    request_id = f"e{received_at:%Y%m%d}-{digest[:10]}"
    first = Person(subjects=(subject,), tokens=(subject,))
    key = erasure_paths.request_subjects(namespace.name, request_id)
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
    """Whom a request is about, as far as it is known by now.

    Raises:
        ConfigError: ERASURE_SUBJECT_DELETED.
    """
    key = erasure_paths.request_subjects(namespace.name, request.request_id)
    stored = namespace.vault.objects.get(key)
    if stored is None:
        raise ConfigError(
            "ERASURE_SUBJECT_DELETED",
            f"The vault no longer says whom the erasure {request.request_id} is about.",
            hint="Receive the request again with the person's identifier, under the day it was received.",
        )
    return Person.decode(stored.data)


def write_person(namespace: Namespace, request: ErasureRequest, person: Person) -> None:
    """Keep whom a request is about. Idempotent."""
    namespace.vault.objects.put(erasure_paths.request_subjects(namespace.name, request.request_id), person.encode())


def delete_ended_persons(namespace: Namespace) -> int:
    """Delete whom requests were about that have ended, also those that a run died over; how many. Idempotent."""
    folder = erasure_paths.request_subjects(namespace.name, "").removesuffix(".json")
    deleted = 0
    for key in namespace.vault.objects.list(folder):
        request = namespace.erasures.read(key.removeprefix(folder).removesuffix(".json"))
        if request is not None and not request.is_open:
            namespace.vault.objects.delete(key)
            deleted += 1
    return deleted
