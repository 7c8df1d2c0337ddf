"""Object keys of privacy data: in the lake (`control/privacy`), and in the vault, a separate storage."""

from __future__ import annotations


def privacy_control(namespace: str, name: str = "") -> str:
    """Returns the control folder of a namespace in the lake, or an object in it."""
    return f"control/privacy/{namespace}/{name}".rstrip("/")


def token_key(namespace: str) -> str:
    """Returns the lake key of the namespace's token key, wrapped by the key service."""
    return privacy_control(namespace, "token_key.json")


def suppressions(namespace: str) -> str:
    """Returns the lake folder of a namespace's suppression records."""
    return privacy_control(namespace, "suppression") + "/"


def suppression(namespace: str, number: int) -> str:
    """Returns the lake key of a suppression record, numbered from 1."""
    return f"{suppressions(namespace)}{number:012d}.json"


def day_keys(namespace: str) -> str:
    """Returns the vault folder of day keys."""
    return f"keys/days/{namespace}/"


def day_key(namespace: str, day: str) -> str:
    """Returns the vault key of the day key that seals a day's unreadable bodies. Deleting the object makes them
    unreadable for good.
    """
    return f"{day_keys(namespace)}{day}.json"


def sealed(name: str = "") -> str:
    """Returns the vault folder of sealed files, or one of them."""
    return f"sealed/{name}"


def sealed_by_collector(collector: str, first: int, last: int) -> str:
    """Returns the vault key of frames that a collector sealed, by the range of spool numbers."""
    return sealed(f"{collector}/{first:020d}-{last:020d}.dws")


def sealed_by_parser(pipeline: str, batch: str, task: str) -> str:
    """Returns the vault key of frames that a task of a batch sealed."""
    return sealed(f"{pipeline}/{batch}-{task}.dws")
