"""`deltaworks privacy`: the reveal log of the vault, and erasure requests."""

from __future__ import annotations

import typer

from deltaworks.cli import erasures
from deltaworks.cli.context import catalog
from deltaworks.cli.output import listing_command
from deltaworks.control.listing import Cell, Listing

app = typer.Typer(no_args_is_help=True)
app.command()(erasures.erase)
app.command("erasures")(erasures.list_erasures)
app.command()(erasures.refuse)
app.command()(erasures.extend)
app.command()(erasures.certificate)
app.command()(erasures.reapply)
_NAMESPACE = typer.Argument(help="Namespace of personal data.", show_default=False)


@app.command("reveals")
@listing_command
def list_reveals(namespace: str = _NAMESPACE) -> Listing:
    """List the reveals of a namespace, newest first: time, user, subject and reason."""
    from deltaworks.tables.lake import Lake
    from deltaworks.vault.namespace_vault import privacy_settings_of
    from deltaworks.vault.reveal import read_reveals

    project = catalog()
    project.namespace(namespace)
    listing = Listing(("at", "by", "subject", "kinds", "reason", "approval"), title="reveals")
    for row in read_reveals(Lake(privacy_settings_of(project.environment).vault), namespace):
        at = Cell(row["at"], f"{row['at']:%Y-%m-%d %H:%M:%S}")
        kinds = ", ".join(row["kinds"]) or "all"
        listing.add(at, row["by"], row["subject"], kinds, row["reason"], row["approval"] or "")
    return listing
