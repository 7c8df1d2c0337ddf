"""Where what belongs to personal data lies: in the lake (`control/privacy`), and in the vault, a storage of its own."""

from __future__ import annotations


def privacy_control(namespace: str, name: str = "") -> str:
    """In the lake: the control folder of a namespace, or one thing in it."""
    return f"control/privacy/{namespace}/{name}".rstrip("/")


def token_key(namespace: str) -> str:
    """In the lake: the key of the namespace's tokens, wrapped by the key service."""
    return privacy_control(namespace, "token_key.json")


def suppressions(namespace: str) -> str:
    """In the lake: the folder of the suppression records of a namespace."""
    return privacy_control(namespace, "suppression") + "/"


def suppression(namespace: str, number: int) -> str:
    """In the lake: one suppression record, numbered from 1."""
    return f"{suppressions(namespace)}{number:012d}.json"


def day_keys(namespace: str) -> str:
    """In the vault: the folder of the keys of days."""
    return f"keys/days/{namespace}/"


def day_key(namespace: str, day: str) -> str:
    """In the vault: the key under which a day's unreadable bodies are sealed. Deleting it destroys them."""
    return f"{day_keys(namespace)}{day}.json"


def sealed(name: str = "") -> str:
    """In the vault: the folder of sealed files, or one of them."""
    return f"sealed/{name}"


def sealed_by_collector(collector: str, first: int, last: int) -> str:
    """In the vault: what a collector sealed between two numbers of its spool."""
    return sealed(f"{collector}/{first:020d}-{last:020d}.dws")


def sealed_by_parser(pipeline: str, batch: str, task: str) -> str:
    """In the vault: what a task of a batch of a pipeline sealed."""
    return sealed(f"{pipeline}/{batch}-{task}.dws")
