"""Measures erasure from receiving requests to destroying people's keys: resolve in the vault, suppress, shred."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from deltaworks.privacy.erasure.requests import Namespace
    from deltaworks.specs.catalog import Catalog


def seconds_to_shredded(folder: Path, *, people: int, requests: int) -> float:
    """Returns the seconds that `requests` requests take together in a vault of `people` people.

    Args:
        folder: a new folder for the lake, keys and vault.
    """
    from deltaworks.control.clock import utc_now
    from deltaworks.privacy.erasure.erasure_run import ErasureRun
    from deltaworks.privacy.erasure.requests import open_namespace, receive_request
    from deltaworks.privacy.tokens.envelope_encryption import token

    catalog = _catalog(folder)
    namespace = open_namespace(catalog, "bench")
    subjects = [token(namespace.token_key, kind="player", value=f"player {number}") for number in range(people)]
    _fill_vault(namespace, subjects)
    now = utc_now()
    started = time.perf_counter()
    for subject in subjects[:requests]:
        receive_request(namespace, subject, received_at=now, by="benchmark")
    # Opens the namespace again, as each erasure run does.
    results = ErasureRun(open_namespace(catalog, "bench"), now=now, may_purge=False).run()
    seconds = time.perf_counter() - started
    left = open_namespace(catalog, "bench").vault.keys.get(subjects)
    if {result.state for result in results} != {"shredded"} or set(left) != set(subjects[requests:]):
        raise AssertionError(f"{len(left)} of {people} keys remain after {requests} requests: {results[:3]}")
    return seconds


def _catalog(folder: Path) -> Catalog:
    from deltaworks.specs.catalog import Catalog
    from deltaworks.specs.environment import EnvironmentSpec
    from deltaworks.specs.pipeline import PipelineSpec

    environment = {
        "environment": "bench",
        "lake": {"root": f"file://{folder}/lake"},
        "landing": {"root": f"file://{folder}/landing"},
        "messaging": {},
        "privacy": {
            "keys": {"kind": "keyring", "folder": f"{folder}/keys"},
            "vault": {"root": f"file://{folder}/vault"},
        },
    }
    fields = [{"path": kind, "action": "token", "as": kind} for kind in ("player", "device")]
    pipeline = {
        "pipeline": "bench",
        "description": "events of people",
        "owner": "benchmark",
        "source": {"kind": "s3_sqs", "relay": "landing", "bucket": "landing"},
        "event": {"name": {"path": "name"}, "time": {"path": "time"}},
        "privacy": {"namespace": "bench", "subject": "player", "fields": fields},
        "tables": [{"name": "events", "catch_all": True}],
    }
    return Catalog(
        environment=EnvironmentSpec.model_validate(environment),
        relays={},
        pipelines={"bench": PipelineSpec.model_validate(pipeline)},
        root=folder,
    )


def _fill_vault(namespace: Namespace, subjects: list[str]) -> None:
    """Adds a key, an email and a device for each person."""
    import pyarrow as pa

    from deltaworks.control.clock import utc_now
    from deltaworks.privacy.tokens.envelope_encryption import token
    from deltaworks.privacy.vault.tables import IDENTITIES, LINKS

    seen = utc_now()
    emails, devices = [], []
    for subject in subjects:
        row = {"namespace": namespace.name, "subject": subject, "first_seen": seen}
        email, device = (token(namespace.token_key, kind=kind, value=subject) for kind in ("email", "device"))
        cell = {"value": bytes(48), "key_version": 1, "last_seen": seen}
        emails.append({**row, **cell, "kind": "email", "token": email})
        devices.append({**row, "kind": "device", "token": device})
    namespace.vault.keys.get_or_create(subjects)
    namespace.vault.tables.merge_identities(pa.Table.from_pylist(emails, IDENTITIES))
    namespace.vault.tables.merge_links(pa.Table.from_pylist(devices, LINKS))
