"""The ingest's parser turns generated objects into the expected rows of the shipped pipelines."""

from __future__ import annotations

import gzip
from collections import Counter

import pytest

from deltaworks.events.chunks import BatchMetadata, Payload
from deltaworks.events.parse import Parser
from deltaworks.events.redaction import RedactionKeys
from generator.games import deliveries
from generator.settings import FaultRates, GamesSettings
from generator.truth import TruthCounter
from tests.unit.generator.reference_reader import GAMES


@pytest.mark.parametrize("seed", range(2))
def test_every_event_is_recovered_and_every_fault_has_its_reason(seed: int) -> None:
    rates = FaultRates(malformed=0.1, without_time=0.01, unknown_name=0.01, type_mismatch=0.01, missing_required=0.01)
    options = GamesSettings(seed=seed, players=200, days=3, events_per_file=150, rates=rates)
    counter = TruthCounter(options)
    payloads = (
        Payload(number, delivery.key, gzip.decompress(delivery.body))
        for number, delivery in enumerate(deliveries(options, counter))
    )

    rows: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    parser = Parser(GAMES, redaction_keys=RedactionKeys(bytes(32)))
    for name, table in parser.parse(payloads, BatchMetadata(batch_id=0, ingested_at_us=0, fingerprint="f")):
        rows[name] += table.num_rows
        if name == "quarantine":
            reasons.update(reason["code"] for each in table["reasons"].to_pylist() for reason in each)

    truth = counter.truth()
    assert truth.quarantined_rows > 300
    assert rows.pop("quarantine") == truth.quarantined_rows
    assert rows == truth.bronze_rows
    assert reasons == truth.quarantine_reasons
