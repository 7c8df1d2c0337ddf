"""What commands share: the settings of the environment and the catalog."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from deltaworks.specs.catalog import Catalog


def use_settings() -> None:
    """Take over the settings file of this checkout, where there is one: the embedded stack's, once it was started.

    Settings of the file win over variables of the calling shell.
    """
    from deltaworks.specs.settings_file import load_settings, settings_file

    path = settings_file()
    if path.is_file():
        load_settings(path)


def catalog() -> Catalog:
    """Everything declared, with the environment's settings taken over."""
    from deltaworks.specs.catalog import load_catalog

    use_settings()
    return load_catalog()
