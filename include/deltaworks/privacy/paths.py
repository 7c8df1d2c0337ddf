"""Object keys (paths) of privacy data in the lake, below `control/privacy`, and in the vault, which is a separate
storage.
"""

from __future__ import annotations


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
