"""Object keys (paths) of privacy data in the lake, below `control/privacy`, and of everything in the vault, which is a
separate storage: keys in it are relative to its root.
"""

from __future__ import annotations

import hashlib
import re

#: In the vault: folder of the subjects of open requests.
REQUESTS_IN_VAULT = "requests/"

#: Hexadecimal digits of a page name: 4,096 pages of keys per namespace.
_PAGE_DIGITS = 3
_PAGE_PATTERN = re.compile(rf"[0-9a-f]{{{_PAGE_DIGITS}}}")


def control_path(namespace: str, name: str = "") -> str:
    """Returns the lake path of a namespace's privacy state, or of an object in it."""
    return f"control/privacy/{namespace}/{name}".rstrip("/")


def token_key_path(namespace: str) -> str:
    """Returns the lake path of the namespace's token key, which is stored in wrapped form."""
    return control_path(namespace, "token_key.json")


def suppression_folder(namespace: str) -> str:
    """Returns the lake path of a namespace's suppression records."""
    return control_path(namespace, "suppression") + "/"


def suppression_record_key(namespace: str, number: int) -> str:
    """Returns the lake path of a suppression record. Records are numbered from 1."""
    return f"{suppression_folder(namespace)}{number:012d}.json"


def day_keys_folder(namespace: str) -> str:
    """Returns the vault path of a namespace's day keys."""
    return f"keys/days/{namespace}/"


def day_key_path(namespace: str, day: str) -> str:
    """Returns the vault path of the key that encrypts a day's unreadable bodies. Deleting the object makes them
    unreadable permanently.
    """
    return f"{day_keys_folder(namespace)}{day}.json"


def sealed_files_path(name: str = "") -> str:
    """Returns the vault path of all sealed files, or of one of them."""
    return f"sealed/{name}"


def collector_sealed_path(collector: str, first: int, last: int) -> str:
    """Returns the vault path of a file that a collector sealed, named by its range of spool numbers."""
    return sealed_files_path(f"{collector}/{first:020d}-{last:020d}.dws")


def parser_sealed_path(pipeline: str, batch: str, task: str) -> str:
    """Returns the vault path of a file that a task of a batch sealed."""
    return sealed_files_path(f"{pipeline}/{batch}-{task}.dws")


def vault_request_subjects(namespace: str, request_id: str) -> str:
    """Returns the key of the person's tokens in the vault, which are stored until the certificate is written."""
    return f"{REQUESTS_IN_VAULT}{namespace}/{request_id}.json"


def vault_certificate_head(namespace: str) -> str:
    """Returns the vault path of the number and digest of a namespace's newest certificate."""
    return f"certificates/{namespace}.json"


def vault_identities() -> str:
    """Returns the key of the Delta table that maps tokens to identifiers."""
    return "identities"


def vault_links() -> str:
    """Returns the key of the Delta table of tokens that occurred with a subject in one event."""
    return "links"


def vault_reveals() -> str:
    """Returns the key of the audit log of reveals: who, when, why. Append-only."""
    return "reveals"


def vault_key_pages(namespace: str) -> str:
    """Returns the folder of a namespace's key pages."""
    return f"keys/{namespace}/"


def vault_page_of(subject: str) -> str:
    """Returns the page that holds a subject's key."""
    return hashlib.sha256(subject.encode()).hexdigest()[:_PAGE_DIGITS]


def vault_key_page(namespace: str, page: str) -> str:
    """Returns the key of the object with the wrapped keys of a page's subjects."""
    return f"{vault_key_pages(namespace)}{page}.json"


def vault_page_of_object(namespace: str, key: str) -> str | None:
    """Returns the page stored at an object key; None for any other object."""
    name = key.removeprefix(vault_key_pages(namespace)).removesuffix(".json")
    return name if vault_key_page(namespace, name) == key and _PAGE_PATTERN.fullmatch(name) else None


def vault_key_epochs(namespace: str) -> str:
    """Returns the folder of the keys that wrap subject keys."""
    return f"keys/epochs/{namespace}/"


def vault_key_epoch(namespace: str, number: int) -> str:
    """Returns the object key under which an epoch's wrapping key is stored, encrypted by the key service."""
    return f"{vault_key_epochs(namespace)}{number}.json"


def vault_lock(namespace: str) -> str:
    """Returns the lock folder for changes to keys or rows of a namespace."""
    return f"work/{namespace}"


def vault_unreadable_files(namespace: str, day: str = "", name: str = "") -> str:
    """Returns the folder of a namespace's unreadable objects, or one object of a day (`2026-11-23`)."""
    return f"unreadable/{namespace}/" + (f"{day}/{name}" if day else "")
