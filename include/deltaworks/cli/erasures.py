"""`deltaworks privacy erase`, `erasures`, `refuse`, `extend` and `certificate`: what a data protection officer does."""

from __future__ import annotations

import getpass
from datetime import datetime
from typing import TYPE_CHECKING

import typer

from deltaworks.cli.context import catalog
from deltaworks.cli.output import listing_command, print_document, print_line, print_parts
from deltaworks.control.clock import parse_iso, utc_now
from deltaworks.control.listing import Cell, Listing
from deltaworks.control.objects import open_objects
from deltaworks.control.records.certificate import Certificates
from deltaworks.control.records.erasure import Erasures
from deltaworks.errors import ConfigError

if TYPE_CHECKING:
    from deltaworks.erasure.namespace import Namespace

_NAMESPACE = typer.Argument(help="The namespace of personal data.", show_default=False)
_REQUEST = typer.Argument(help="The request, as `deltaworks privacy erasures` lists it.", show_default=False)
_REASON = typer.Option(help="The ground, as the person is told it.", show_default=False)


def erase(
    namespace: str = _NAMESPACE,
    kind: str = typer.Option(help="Of what kind the identifier is, such as email; `token` for a token itself."),
    value: str | None = typer.Option(None, help="The identifier; without it you are asked, and no history has it."),
    received: str = typer.Option("", help="The day the person asked, such as 2026-11-02; today by default."),
    dry_run: bool = typer.Option(True, help="Only count rows and dates by table."),
) -> None:
    """Receive the request of a person to be erased, suppress what comes in of them, and destroy their key.

    The identifier becomes a token at once and is kept nowhere. Rows are taken out by the DAG erase__<namespace> in its
    next night, files of older versions a week later; the certificate says all of it.
    """
    from deltaworks.erasure.namespace import open_namespace
    from deltaworks.erasure.requests import token_of

    received_at = _parse_received(received)
    space = open_namespace(catalog(), namespace)
    identifier = typer.prompt(kind, hide_input=True) if value is None else value
    token = token_of(space, kind=kind, value=identifier)
    if dry_run:
        _print_counts(space, token)
    else:
        _create_request(space, token, received_at)


def _create_request(space: Namespace, token: str, received_at: datetime) -> None:
    from deltaworks.erasure.erasure_run import ErasureRun
    from deltaworks.erasure.requests import receive_request

    request = receive_request(space, token, received_at=received_at, by=getpass.getuser())
    print_line(f"Request {request.request_id}, due by {request.deadline_at:%Y-%m-%d}.")
    for result in ErasureRun(space, now=utc_now(), may_purge=False).run():
        if result.request == request.request_id:
            print_line(
                f"It is {result.state}" + (f" and waits for {result.waiting_for}." if result.waiting_for else ".")
            )


def _print_counts(space: Namespace, token: str) -> None:
    from deltaworks.erasure.row_counts import count_rows, person_of_token

    person = person_of_token(space, token)
    shown = Listing(("table", "rows", "from", "to", ""), title="what would go")
    for counted in count_rows(space, person):
        shown.add(*counted.cells)
    shared = f"{person.shared} linked to others too, which stay" if person.shared else "none of them shared"
    print_parts([shown, f"{len(person.tokens)} tokens, {shared}. Nothing was changed: --no-dry-run does it."])


def _parse_received(text: str) -> datetime:
    try:
        received = parse_iso(text) or utc_now()
    except ValueError as error:
        raise ConfigError("DATE_INVALID", f"{text!r} is no day.", hint="Give it as 2026-11-02.") from error
    if received > utc_now():
        raise ConfigError("DATE_INVALID", f"{text} is to come.", hint="Give the day on which the person asked.")
    return received


@listing_command
def list_erasures(
    namespace: str = _NAMESPACE,
    ended: bool = typer.Option(False, help="Those too that are certified or refused."),
) -> Listing:
    """List the requests of a namespace: state, deadlines, and since when it is there."""
    listing = Listing(("request", "received", "state", "since", "purge by", "deadline", "extended"), title="erasures")
    for request in _erasures(namespace).all_requests():
        if request.is_open or ended:
            since = Cell(request.steps[-1].at, request.steps[-1].at[:16].replace("T", " "))
            days = [f"{at:%Y-%m-%d}" for at in (request.received_at, request.purge_by, request.deadline_at)]
            extended = "yes" if request.is_extended else ""
            listing.add(request.request_id, days[0], request.state, since, days[1], days[2], extended)
    return listing


def refuse(namespace: str = _NAMESPACE, request: str = _REQUEST, reason: str = _REASON) -> None:
    """Refuse a request (article 17(3)), before anything of it is done."""
    erasures = _erasures(namespace)
    erasures.refuse(erasures.request(request), reason=reason, by=getpass.getuser())
    print_line(f"{request} is refused. Tell the person why, and where they may complain.")


def extend(namespace: str = _NAMESPACE, request: str = _REQUEST, reason: str = _REASON) -> None:
    """Move the deadline of a request by two months (article 12(3)); the person is told within the first."""
    erasures = _erasures(namespace)
    extended = erasures.extend(erasures.request(request), reason=reason, by=getpass.getuser(), now=utc_now())
    print_line(f"{request} is due by {extended.deadline_at:%Y-%m-%d} now. Tell the person why, within a month.")


def reapply(
    pipeline: str = typer.Argument(help="The pipeline.", show_default=False),
    dry_run: bool = typer.Option(True, help="Only count them."),
) -> None:
    """Take rows of erased people out again that something brought back, such as a bucket restored from outside."""
    from deltaworks.erasure.reapply import ErasureReapplier

    reapplier = ErasureReapplier(catalog(), pipeline)
    tables = reapplier.erasable_tables
    shown = Listing(("table", "rows", "dates"), title="erased rows that are back")
    if dry_run:
        for back in reapplier.find_reappeared_rows(tables):
            shown.add(back.table, f"{back.rows:,}", ", ".join(back.dates[:5]))
        print_parts([shown, "Nothing was changed: --no-dry-run does it."])
        return
    for purge in reapplier.purge_reappeared_rows(tables):
        shown.add(purge.table, f"{purge.erased_before:,}", ", ".join(sorted(purge.dates)[:5]))
    print_parts([shown])


def certificate(namespace: str = _NAMESPACE, request: str = _REQUEST) -> None:
    """Print the certificate of a request, once the whole chain of the namespace was checked."""
    project = catalog()
    project.namespace(namespace)
    certificates = Certificates(open_objects(project.environment.lake), namespace)
    certificates.check()
    data = certificates.raw_bytes(request)
    if data is None:
        raise ConfigError(
            "ERASURE_UNKNOWN",
            f"{request} has no certificate yet.",
            hint=f"`deltaworks privacy erasures {namespace}` says how far it is.",
        )
    print_document(data.decode())


def _erasures(namespace: str) -> Erasures:
    project = catalog()
    project.namespace(namespace)
    return Erasures(open_objects(project.environment.lake), namespace)
