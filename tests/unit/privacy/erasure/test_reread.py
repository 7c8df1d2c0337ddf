"""Replays, reprocesses and new generations restore no erased person."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path
from typing import Any

import pytest

from deltaworks.control import paths
from deltaworks.control.locks.lease import reread_lease
from deltaworks.events import redaction_keys
from deltaworks.events.parse import ParserInputs
from deltaworks.privacy.erasure import purge_window, reapply
from deltaworks.privacy.erasure.erasure_run import ErasureResult, ErasureRun
from deltaworks.privacy.erasure.reapply import ErasureReapplier
from deltaworks.privacy.erasure.requests import Namespace, open_namespace, receive_request, token_of
from deltaworks.privacy.erasure.token_search import TokenSearch
from deltaworks.privacy.tokens.suppression import NO_SUPPRESSION
from deltaworks.recovery.quarantine.open_rows import QuarantineFilter
from deltaworks.recovery.quarantine.replay import ReplayResult, replay_quarantine
from deltaworks.recovery.reprocess.reread import Rereader, RereadScope, open_landing
from deltaworks.recovery.reprocess.selection import SourceObject
from deltaworks.recovery.start_over import start_over
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.testing import pipeline_spec
from tests.crashes import Crash, crash_at
from tests.unit.recovery.replay_harness import ReplayHarness

ANN, BOB = "ann", "bob"
#: Landed objects keep her, so that it is the list that keeps her out.
PRIVACY = {
    "namespace": "players",
    "subject": "player",
    "erase": {"landing": "expire"},
    "fields": [{"path": "player", "action": "token", "as": "player"}],
}


def spec(level: str = "int") -> PipelineSpec:
    """`level: int` is the mistake that `level: string` mends."""
    columns = [
        {"name": "player", "path": "player", "type": "string"},
        {"name": f"level_{level}", "path": "level", "type": level},
    ]
    return pipeline_spec({"name": "orders", "when": {"name": "order"}, "columns": columns}, privacy=PRIVACY)


class PeopleStage(ReplayHarness):
    """Orders of Ann and Bob, of which one each has a level that fits later only."""

    def __init__(self, root: Path) -> None:
        keys = {
            "keys": {"kind": "keyring", "folder": f"{root}/lake-keyring"},
            "vault": {"root": f"file://{root}/lake-vault"},
        }
        super().__init__(root, privacy=keys)
        orders = [(ANN, 1), (BOB, 2), (ANN, "three"), (BOB, "four")]
        events = [{"name": "order", "time": 1_700_000_000, "player": who, "level": level} for who, level in orders]
        self.ingest(spec(), "".join(map(json.dumps, events)).encode())

    @property
    def namespace(self) -> Namespace:
        return open_namespace(self.catalog(spec()), "players")

    def token(self, who: str) -> str:
        return token_of(self.namespace, kind="player", value=who)

    def ask(self, who: str = ANN) -> None:
        receive_request(self.namespace, self.token(who), received_at=dt.datetime.now(dt.UTC), by="tests")

    def advance(self, **options: Any) -> list[ErasureResult]:
        return ErasureRun(self.namespace, now=dt.datetime.now(dt.UTC), **options).run()

    def erase(self) -> None:
        self.ask()
        assert [result.state for result in self.advance()] == ["purged"]
        assert self.of(ANN) == 0

    def of(self, who: str, *tables: str) -> int:
        """Rows that name somebody, in orders and quarantine."""
        search = TokenSearch([self.token(who)])
        found = [self.lake.rows(paths.table("shop", name)) for name in tables or ("orders", "quarantine")]
        return sum(
            int(search.matching_rows(batch).sum()) for rows in found if rows is not None for batch in rows.to_batches()
        )

    def replay(self, **options: Any) -> ReplayResult:
        return replay_quarantine(self.catalog(spec("string")), "shop", QuarantineFilter(), dry_run=False, **options)


@pytest.fixture
def stage(tmp_path: Path) -> PeopleStage:
    return PeopleStage(tmp_path)


@pytest.fixture(params=["protected", "off"])
def protected(request: pytest.FixtureRequest) -> bool:
    return bool(request.param == "protected")


def without_the_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redaction_keys, "read_suppression", lambda *_, **__: NO_SUPPRESSION)


def test_a_replay_drops_subjects_suppressed_since(
    stage: PeopleStage, monkeypatch: pytest.MonkeyPatch, protected: bool
) -> None:
    assert (stage.of(ANN, "quarantine"), stage.of(BOB, "quarantine")) == (1, 1)
    stage.ask()
    stage.advance(may_purge=False)
    if not protected:
        without_the_list(monkeypatch)

    result = stage.replay()

    assert (result.landed, stage.of(ANN, "orders")) == ((1, 1) if protected else (2, 2))
    monkeypatch.undo()
    stage.advance()
    assert (stage.of(ANN), stage.of(BOB, "orders")) == (0, 2)


def test_a_reprocess_drops_erased_subjects(
    stage: PeopleStage, monkeypatch: pytest.MonkeyPatch, protected: bool
) -> None:
    stage.erase()
    if not protected:
        without_the_list(monkeypatch)
    now = spec("string")
    inputs = ParserInputs.pin(now, stage.lake.storage)
    opener = open_landing(stage.environment, now)
    rereader = Rereader(now, RereadScope(frozenset(["orders", "quarantine"]), all_tables=True), opener, inputs=inputs)
    (event,) = stage.events
    objects = [SourceObject(event["seq"], event["key"], event["etag"], event["size"], batch_id=0, ingested_at_us=1)]

    rows = [row for _, part in rereader.read_objects(objects) for row in part.to_pylist()]

    named = [row.get("player") for row in rows]
    # One of each fits now; the other, a number, is in quarantine.
    assert named.count(stage.token(ANN)) == (0 if protected else 1)
    assert named.count(stage.token(BOB)) == 1
    assert len(rows) == (2 if protected else 4)


def test_a_new_generation_drops_erased_subjects(
    stage: PeopleStage, monkeypatch: pytest.MonkeyPatch, protected: bool
) -> None:
    stage.erase()
    now = spec("string")
    start_over(stage.catalog(now), "shop", dry_run=False, max_rows=100)
    if not protected:
        without_the_list(monkeypatch)

    stage.read_from_the_start(now, generation=2)

    assert (stage.of(ANN), stage.of(BOB)) == ((0, 2) if protected else (2, 2))


def test_an_operation_reads_the_suppression_list_once(stage: PeopleStage, monkeypatch: pytest.MonkeyPatch) -> None:
    stage.erase()
    real, reads = reapply.read_suppression, []

    def counted(*args: Any, **options: Any) -> Any:
        reads.append(args[1])
        return real(*args, **options)

    monkeypatch.setattr(reapply, "read_suppression", counted)
    reapplier = ErasureReapplier(stage.catalog(spec()), "shop")
    assert reapplier.purge_reappeared_rows(["orders", "quarantine"]) == []
    assert reads == ["players"]


def test_an_interrupted_replay_with_matching_rows_blocks_the_window(
    stage: PeopleStage, monkeypatch: pytest.MonkeyPatch, protected: bool
) -> None:
    with pytest.raises(Crash):
        stage.replay(fault=crash_at("prepared"))
    stage.ask()
    if not protected:
        monkeypatch.setattr(purge_window, "_unfinished_replays", lambda *_: iter(()))

    (waiting,) = stage.advance()

    assert waiting.state == ("shredded" if protected else "purged")
    assert ("the replay 1 of shop" in waiting.waiting_for) is protected
    stage.replay()
    stage.advance()
    assert stage.of(ANN) == (0 if protected else 1), "without the check her row comes back behind the window"
    assert stage.of(BOB, "orders") == 2


def test_a_window_does_not_start_during_a_replay(stage: PeopleStage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(purge_window, "WAIT_SECONDS", 0.2)
    stage.ask()
    home = stage.namespace.home("shop")
    with reread_lease(home).held(wait_seconds=1):
        (waiting,) = stage.advance()
    assert (waiting.state, "reads landed rows" in waiting.waiting_for) == ("shredded", True)
    (purged,) = stage.advance()
    assert purged.state == "purged"
