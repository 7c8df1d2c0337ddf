"""What commands share: the running stack's addresses, the catalog, a console."""

from __future__ import annotations

from rich.console import Console

from deltaworks.local.environment import load_env
from deltaworks.local.home import StackHome
from deltaworks.specs.catalog import Catalog, load_catalog

console = Console(soft_wrap=True)


def use_stack() -> None:
    """Take over the addresses of the embedded stack, where one has been started in this checkout.

    Variables already set win, so that the same commands work against any other environment.
    """
    home = StackHome.default()
    if home.env_file.is_file():
        load_env(home)


def catalog() -> Catalog:
    """Everything declared, with the stack's addresses known."""
    use_stack()
    return load_catalog()
