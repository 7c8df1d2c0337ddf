"""Keys of tables and subject keys in the vault, relative to its root. The vault is a storage separate from the lake.

Collectors and other writers before the lake store objects in the vault too; their keys are in
`deltaworks.privacy.paths`.
"""

from __future__ import annotations

import hashlib
import re

#: Hexadecimal digits of a page name: 4,096 pages per namespace.
_PAGE_DIGITS = 3
_PAGE_PATTERN = re.compile(rf"[0-9a-f]{{{_PAGE_DIGITS}}}")


def identities() -> str:
    """Returns the key of the Delta table that maps tokens to identifiers."""
    return "identities"


def links() -> str:
    """Returns the key of the Delta table of tokens that occurred with a subject in one event."""
    return "links"


def reveals() -> str:
    """Returns the key of the audit log of reveals: who, when, why. Append-only."""
    return "reveals"


def key_pages(namespace: str) -> str:
    """Returns the folder of a namespace's key pages."""
    return f"keys/{namespace}/"


def page_of(subject: str) -> str:
    """Returns the page that holds a subject's key."""
    return hashlib.sha256(subject.encode()).hexdigest()[:_PAGE_DIGITS]


def key_page(namespace: str, page: str) -> str:
    """Returns the key of the object with the wrapped keys of a page's subjects."""
    return f"{key_pages(namespace)}{page}.json"


def page_of_object(namespace: str, key: str) -> str | None:
    """Returns the page stored at an object key; None for any other object."""
    name = key.removeprefix(key_pages(namespace)).removesuffix(".json")
    return name if key_page(namespace, name) == key and _PAGE_PATTERN.fullmatch(name) else None


def key_epochs(namespace: str) -> str:
    """Returns the folder of the keys that wrap subject keys."""
    return f"keys/epochs/{namespace}/"


def key_epoch(namespace: str, number: int) -> str:
    """Returns the object key under which an epoch's wrapping key is stored, encrypted by the key service."""
    return f"{key_epochs(namespace)}{number}.json"


def namespace_lock(namespace: str) -> str:
    """Returns the lock folder for changes to keys or rows of a namespace."""
    return f"work/{namespace}"


def unreadable_files(namespace: str, day: str = "", name: str = "") -> str:
    """Returns the folder of a namespace's unreadable objects, or one object of a day (`2026-11-23`)."""
    return f"unreadable/{namespace}/" + (f"{day}/{name}" if day else "")
