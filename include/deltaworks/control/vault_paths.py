"""Where tables and keys of subjects lie in the vault, a storage apart from the lake. Keys are relative to its root.

`deltaworks.privacy.paths` says where those lie that writers before the lake put there.
"""

from __future__ import annotations

import hashlib
import re

#: So many hexadecimal digits name a page: 4,096 pages a namespace.
_PAGE_DIGITS = 3
_PAGE_PATTERN = re.compile(rf"[0-9a-f]{{{_PAGE_DIGITS}}}")


def identities() -> str:
    """The Delta table of what tokens stand for."""
    return "identities"


def links() -> str:
    """The Delta table of the tokens that were seen with a subject in one event."""
    return "links"


def reveals() -> str:
    """The Delta table of who opened what and why; appended to only."""
    return "reveals"


def key_pages(namespace: str) -> str:
    """The folder of the pages of a namespace."""
    return f"keys/{namespace}/"


def page_of(subject: str) -> str:
    """The page that holds the key of a subject."""
    return hashlib.sha256(subject.encode()).hexdigest()[:_PAGE_DIGITS]


def key_page(namespace: str, page: str) -> str:
    """The object with the wrapped keys of a page's subjects."""
    return f"{key_pages(namespace)}{page}.json"


def page_of_object(namespace: str, key: str) -> str | None:
    """The page that an object holds; None of any other object."""
    name = key.removeprefix(key_pages(namespace)).removesuffix(".json")
    return name if key_page(namespace, name) == key and _PAGE_PATTERN.fullmatch(name) else None


def key_epochs(namespace: str) -> str:
    """The folder of the keys that wrap those of subjects."""
    return f"keys/epochs/{namespace}/"


def key_epoch(namespace: str, number: int) -> str:
    """The object with the key of one epoch, wrapped by the key service."""
    return f"{key_epochs(namespace)}{number}.json"


def namespace_lock(namespace: str) -> str:
    """The folder of the lock of whoever changes keys or rows of a namespace."""
    return f"work/{namespace}"


def unreadable_files(namespace: str, day: str = "", name: str = "") -> str:
    """The folder of what could not be read of a namespace, or one object of a day (`2026-11-23`)."""
    return f"unreadable/{namespace}/" + (f"{day}/{name}" if day else "")
