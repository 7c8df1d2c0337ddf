"""A landing bucket with personal data, its relay, and a lake with erasures."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from deltaworks.events.chunks import BatchMetadata, Payload
from deltaworks.events.parse import Parser
from deltaworks.events.redaction import RedactionKeys
from deltaworks.privacy.erasure.landing_sweep import LandingReport, LandingSweep
from deltaworks.privacy.erasure.token_search import TokenSearch
from deltaworks.sources.objects.file_event_log import FileEventLog
from deltaworks.sources.objects.payloads import FileOpener, FileReference
from deltaworks.sources.objects.relay.redrive import Reconciliation, reconcile
from deltaworks.sources.objects.relay.relay import Relay
from deltaworks.specs.project import load_catalog
from deltaworks.specs.relay import RelaySpec
from deltaworks.tables.lake import Lake
from deltaworks.testing import write_files
from tests.unit.privacy.erasure.people_lake import SHOP, PeopleLake

REQUEST = "e20260301-0123456789"
AT = "2026-03-01T10:00:00Z"


def order(player: str, amount: int, **more: Any) -> bytes:
    return json.dumps({"name": "order", "time": AT, "player": player, "amount": amount, **more}).encode()


class LandedPeople(PeopleLake):
    """A `PeopleLake` whose landing bucket holds objects.

    Args:
        landing: the bucket of `tests.unit.sources.conftest`; None for a folder that is listed.
    """

    def __init__(self, root: Path, landing: Any = None, **relay: Any) -> None:
        bucket = "landing" if landing is None else landing.bucket
        super().__init__(root, SHOP.replace("bucket: landing", f"bucket: {bucket}"))
        self.landing = landing
        self.bucket = bucket
        if landing is not None:
            declared = root / "project" / "include" / "environments" / "local.yaml"
            environment = yaml.safe_load(declared.read_text())
            environment["landing"] = json.loads(landing.storage.model_dump_json(exclude_defaults=True))
            declared.write_text(yaml.safe_dump(environment))
            self.catalog = load_catalog("local", root=root / "project")
        else:
            (root / "landing").mkdir()
            relay = {"listing": {"grace_minutes": 0}, **relay}
        options = {"relay": "landing", "buckets": (bucket,), "append_seconds": 0.1, "lease_ttl_seconds": 3, **relay}
        if landing is not None:
            options["queue_url"] = landing.queue_url
        self.relay_spec = RelaySpec.model_validate(options)

    def put(self, key: str, data: bytes) -> None:
        """Land an object, as a producer does."""
        if self.landing is not None:
            self.landing.put(key, body=data)
            return
        write_files(self.root, {f"landing/{key}": data})

    def content(self, key: str) -> bytes:
        if self.landing is None:
            return (self.root / "landing" / key).read_bytes()
        return bytes(self.landing.s3.get_object(Bucket=self.bucket, Key=key)["Body"].read())

    def relay(self) -> None:
        """Log what was announced, or what a listing shows, until nothing waits."""
        queue = None if self.landing is None else self.landing.queue()
        environment = self.catalog.environment
        if self.relay_spec.listing is not None:
            (self.root / "lake" / "control" / "relays" / "landing" / "listing.json").unlink(missing_ok=True)
        Relay(
            self.relay_spec, lake=environment.lake, queue=queue, landing=environment.landing, until_drained=True
        ).run()

    def logged(self) -> list[dict[str, Any]]:
        return FileEventLog(Lake(self.catalog.environment.lake), "landing").read(0).to_pylist()

    def reconciled(self) -> Reconciliation:
        lake = Lake(self.catalog.environment.lake)
        spec = self.relay_spec.model_copy(update={"listing": None, "queue_url": "q"})
        result = reconcile(spec, lake, self.catalog.environment.landing, [])
        return result

    def payloads(self) -> list[Payload]:
        """Every object of the log, as a task of a stream opens it."""
        spec = self.catalog.pipeline("shop")
        environment = self.catalog.environment
        opener = FileOpener.for_source(environment.landing, spec.source, lake=environment.lake)  # type: ignore[arg-type]
        return [
            opener(FileReference(row["seq"], row["key"], row["etag"], row["version_id"], 0)) for row in self.logged()
        ]

    def read(self) -> tuple[list[tuple[int, int, int]], Mapping[str, int]]:
        """What a stream, a reprocess or a start-over makes of all that was logged: `_seq`, `_position` and amount of
        each order, and what became of events that are no rows."""
        parser = Parser(self.catalog.pipeline("shop"), redaction_keys=RedactionKeys(self.namespace.token_key))
        rows = []
        for table, part in parser.parse(self.payloads(), BatchMetadata(1, 0, "f")):
            if table == "orders":
                rows += [(row["_seq"], row["_position"], row["amount"]) for row in part.to_pylist()]
            else:
                rows += [(row["_seq"], row["_position"], -1) for row in part.to_pylist()]
        return sorted(rows), dict(parser.findings.privacy)

    def sweep(self, player: str = "ann", **options: Any) -> LandingReport:
        """One sweep for a player."""
        return LandingSweep(self.namespace, {REQUEST: TokenSearch([self.token("player", player)])}, **options).run()
