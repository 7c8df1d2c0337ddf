"""`deltaworks privacy`: erasure requests, for a data protection officer, tokens, and the vault's log of reveals."""

from __future__ import annotations

import sys
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from deltaworks.cli.context import catalog
from deltaworks.cli.output import listing_command, print_document, print_line, print_parts
from deltaworks.control.clock import parse_iso, utc_now
from deltaworks.control.listing import Cell, Listing
from deltaworks.control.objects import open_objects
from deltaworks.control.provenance import system_user
from deltaworks.control.records.certificate import Certificates
from deltaworks.control.records.erasure import Erasures
from deltaworks.errors import ConfigError

if TYPE_CHECKING:
    from deltaworks.privacy.erasure.requests import Namespace

_NAMESPACE = typer.Argument(help="Namespace of personal data.", show_default=False)
_REQUEST = typer.Argument(help="Request id, as in `deltaworks privacy erasures`.", show_default=False)
_REASON = typer.Option(help="Reason, as given to the person.", show_default=False)


def erase(
    namespace: str = _NAMESPACE,
    kind: str = typer.Option(help="Kind of the identifier, such as email; `token` for a token."),
    value: str | None = typer.Option(
        None, help=("Identifier; prompted for by default, which keeps it out of the shell history.")
    ),
    received: str = typer.Option("", help="Day the person asked, such as 2026-11-02; by default today."),
    dry_run: bool = typer.Option(True, help="Only count subjects, and rows and dates per table."),
) -> None:
    """Create an erasure request: suppress new events of the person, and destroy their key.

    The identifier becomes a token immediately and is not stored. The DAG <namespace>__erase deletes the rows in its
    next night, and files of older versions a week later. The certificate documents each step.
    """
    from deltaworks.privacy.erasure.requests import open_namespace, token_of

    received_at = _parse_received(received)
    space = open_namespace(catalog(), namespace)
    identifier = typer.prompt(kind, hide_input=True) if value is None else value
    token = token_of(space, kind=kind, value=identifier)
    if dry_run:
        _print_counts(space, token)
    else:
        _create_request(space, token, received_at)


def _create_request(namespace: Namespace, token: str, received_at: datetime) -> None:
    from deltaworks.privacy.erasure.erasure_run import ErasureRun
    from deltaworks.privacy.erasure.requests import receive_request

    request = receive_request(namespace, token, received_at=received_at, by=system_user())
    print_line(f"Request {request.request_id}, due by {request.deadline_at:%Y-%m-%d}.")
    for result in ErasureRun(namespace, now=utc_now(), may_purge=False).run():
        if result.request == request.request_id:
            print_line(
                f"It is {result.state}" + (f" and waits for {result.waiting_for}." if result.waiting_for else ".")
            )


def _print_counts(namespace: Namespace, token: str) -> None:
    from deltaworks.privacy.erasure.purge_window import count_rows, person_of_token
    from deltaworks.privacy.erasure.requests import describe_person

    person = person_of_token(namespace, token)
    listing = Listing(("table", "rows", "from", "to", ""), title="rows to delete")
    for rows in count_rows(namespace, person):
        listing.add(*rows.cells)
    shared = f"{person.shared} shared with other people, which are kept" if person.shared else "none shared"
    counted = f"{len(person.tokens)} tokens, {shared}."
    print_parts([*describe_person(namespace, person), listing, f"{counted} Nothing was changed; use --no-dry-run."])


def _parse_received(text: str) -> datetime:
    try:
        received = parse_iso(text) or utc_now()
    except ValueError as error:
        raise ConfigError("DATE_INVALID", f"{text!r} is not a date.") from error
    if received > utc_now():
        raise ConfigError("DATE_INVALID", f"{text} is in the future.", hint="Use the day on which the person asked.")
    return received


@listing_command
def list_erasures(
    namespace: str = _NAMESPACE,
    include_ended: bool = typer.Option(False, help="Include certified and refused requests."),
) -> Listing:
    """List the erasure requests of a namespace: state, its start, and deadlines."""
    listing = Listing(("request", "received", "state", "since", "purge by", "deadline", "extended"), title="erasures")
    for request in _erasures(namespace).all_requests():
        if request.is_open or include_ended:
            since = Cell(request.steps[-1].at, request.steps[-1].at[:16].replace("T", " "))
            days = [f"{at:%Y-%m-%d}" for at in (request.received_at, request.purge_by, request.deadline_at)]
            extended = "yes" if request.is_extended else ""
            listing.add(request.request_id, days[0], request.state, since, days[1], days[2], extended)
    return listing


def refuse(namespace: str = _NAMESPACE, request: str = _REQUEST, reason: str = _REASON) -> None:
    """Refuse a request (article 17(3)) before any of its work is done."""
    erasures = _erasures(namespace)
    erasures.refuse(erasures.request(request), reason=reason, by=system_user())
    print_line(f"{request} is refused. Inform the person of the reason and of their right to complain.")


def extend(namespace: str = _NAMESPACE, request: str = _REQUEST, reason: str = _REASON) -> None:
    """Extend the deadline of a request by two months (article 12(3)); inform the person within the first month."""
    erasures = _erasures(namespace)
    extended = erasures.extend(erasures.request(request), reason=reason, by=system_user(), now=utc_now())
    print_line(f"{request} is due by {extended.deadline_at:%Y-%m-%d} now. Tell the person why, within a month.")


def reapply(
    pipeline: str = typer.Argument(help="The pipeline.", show_default=False),
    dry_run: bool = typer.Option(True, help="Only count the rows."),
) -> None:
    """Delete rows of erased people that reappeared, for example after a bucket was restored."""
    from deltaworks.privacy.erasure.reapply import ErasureReapplier

    reapplier = ErasureReapplier(catalog(), pipeline)
    tables = reapplier.erasable_tables
    listing = Listing(("table", "rows", "dates"), title="reappeared rows of erased people")
    if dry_run:
        for back in reapplier.find_reappeared_rows(tables):
            listing.add(back.table, f"{back.rows:,}", ", ".join(back.dates[:5]))
        print_parts([listing, "Nothing was changed; use --no-dry-run."])
        return
    for purge in reapplier.purge_reappeared_rows(tables):
        listing.add(purge.table, f"{purge.erased_before:,}", ", ".join(sorted(purge.dates)[:5]))
    print_parts([listing])


def certificate(namespace: str = _NAMESPACE, request: str = _REQUEST) -> None:
    """Print the certificate of a request after verifying the namespace's chain, and its end in the vault."""
    from deltaworks.privacy.vault.namespace_vault import privacy_settings_of

    project = catalog()
    project.namespace(namespace)
    vault = open_objects(privacy_settings_of(project.environment).vault)
    certificates = Certificates(open_objects(project.environment.lake), namespace, vault)
    certificates.check()
    data = certificates.raw_bytes(request)
    if data is None:
        raise ConfigError(
            "ERASURE_UNKNOWN",
            f"{request} has no certificate yet.",
            hint=f"`deltaworks privacy erasures {namespace}` shows its state.",
        )
    print_document(data.decode())


def keyring(
    writers: Path = typer.Option(help="Folder to write the keys of collectors to.", show_default=False),
) -> None:
    """Give collectors a keyring of their own: keys to compute tokens and to seal, none that opens what is sealed.

    Missing keys of all namespaces are created first. Repeat it after you declare a namespace.
    """
    from deltaworks.privacy.key_service import LocalKeyring
    from deltaworks.privacy.stored_keys import open_key_service

    project = catalog(required_service=None)
    settings = project.environment.privacy
    service = open_key_service(settings.keys) if settings is not None and settings.keys.kind == "keyring" else None
    if not isinstance(service, LocalKeyring):
        # Not an error: containers run this first in every environment.
        print_line("The environment declares no keyring. The policy of a key service grants each role its keys.")
        return
    service.share_with_writers(writers, project.namespaces)
    print_line(f"{writers} has the keys of writers of {len(project.namespaces)} namespaces.")


@listing_command
def list_tokens(
    namespace: str = _NAMESPACE,
    kind: str = typer.Option(help="Kind of the identifiers, such as player."),
    file: Path | None = typer.Option(
        None, help="Identifiers, one a line; standard input by default, which keeps them out of the shell history."
    ),
) -> Listing:
    """List the tokens of identifiers that you know; without one for erased people. It reveals no identifier."""
    from deltaworks.events.redaction_keys import lookup_tokens

    lines = (sys.stdin.read() if file is None else file.read_text(encoding="utf-8")).splitlines()
    tokens = lookup_tokens(catalog(), namespace, kind=kind, values=[line.strip() for line in lines])
    listing = Listing(("identifier", "token"), title="tokens")
    for value, token in tokens.items():
        listing.add(value, token or "")
    return listing


def _erasures(namespace: str) -> Erasures:
    project = catalog()
    project.namespace(namespace)
    return Erasures(open_objects(project.environment.lake), namespace)


app = typer.Typer(no_args_is_help=True)
app.command()(erase)
app.command("erasures")(list_erasures)
app.command("tokens")(list_tokens)
app.command()(refuse)
app.command()(extend)
app.command()(certificate)
app.command()(reapply)
app.command()(keyring)


@app.command("reveals")
@listing_command
def list_reveals(namespace: str = _NAMESPACE) -> Listing:
    """List the reveals of a namespace, newest first: time, user, subject and reason."""
    from deltaworks.privacy.vault.namespace_vault import privacy_settings_of
    from deltaworks.privacy.vault.reveal import read_reveals
    from deltaworks.tables.lake import Lake

    project = catalog()
    project.namespace(namespace)
    listing = Listing(("at", "by", "subject", "kinds", "reason", "approval"), title="reveals")
    for row in read_reveals(Lake(privacy_settings_of(project.environment).vault), namespace):
        at = Cell(row["at"], f"{row['at']:%Y-%m-%d %H:%M:%S}")
        kinds = ", ".join(row["kinds"]) or "all"
        listing.add(at, row["by"], row["subject"], kinds, row["reason"], row["approval"] or "")
    return listing
