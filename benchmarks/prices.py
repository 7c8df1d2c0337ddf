"""`prices`: the cost that quarantine, rules and duplicate flags each add to landing a batch. Both sides are Deltaworks.

Each side lands the same files as one batch into all tables of the games pipeline (`benchmarks.sides.FanOut`):

- `quarantine_0_bad`: the pipeline as declared, against one without required columns, on files without faults: the cost
  of the checks. Types are converted on both sides.
- `quarantine_5_percent_bad`: files in which a twentieth of the events is invalid, against files without faults.
- `rules`: two rules that warn and two that quarantine on the table of all events, against no rules; no row violates
  them.
- `duplicates`: duplicate flags in the table of all events, against none. The same files land three times and the third
  batch is measured. Every row is a duplicate; a Python worker has the ids of the first batch in memory and reads those
  of the second.
- `duplicates_5_batches`: the same with five earlier batches, which shows how the cost grows with the window.
"""

from __future__ import annotations

from benchmarks.games_files import GamesFiles, games_files
from benchmarks.harness import Benchmark, Comparison, Options, Result, Run, Side, TinySize, measure
from deltaworks.specs.pipeline import PipelineSpec
from generator.settings import FaultRates

RULES = (
    {"name": "has_a_name", "check": "length(event_name) > 0", "on_fail": "warn"},
    {"name": "of_this_age", "check": "event_time > TIMESTAMP '2000-01-01 00:00:00'", "on_fail": "warn"},
    {"name": "known_country", "check": "country IS NULL OR length(country) = 2", "on_fail": "quarantine"},
    {"name": "has_a_device", "check": "length(device_id) > 0", "on_fail": "quarantine"},
)
_FAULT_RATES = FaultRates(
    malformed=0.02, without_time=0.01, unknown_name=0.01, type_mismatch=0.005, missing_required=0.005
)


def run(options: Options) -> list[Result]:
    """Measures the comparisons."""
    from benchmarks import sides, storages

    clean = games_files(options.events, faults=FaultRates.none(), progress=options.progress)
    bad = games_files(options.events, faults=_FAULT_RATES, progress=options.progress)
    spec, spark, place = sides.games_spec(), sides.session(), storages.local_disk()

    def fan_out(declared: PipelineSpec, files: GamesFiles) -> sides.FanOut:
        return sides.FanOut(spark, declared, files, place)

    def again(declared: PipelineSpec, before: int) -> Run:
        return lambda clock: sides.land_repeatedly(spark, declared, clean, place, clock, before=before)

    plain = Side("plain", fan_out(spec, clean))
    flagging = with_events(spec, duplicates={"flag_within_days": 7})
    pairs = {
        "quarantine_0_bad": (plain, Side("nothing_to_check", fan_out(spec_without_checks(spec), clean))),
        "quarantine_5_percent_bad": (Side("bad", fan_out(spec, bad)), plain),
        "rules": (Side("rules", fan_out(with_events(spec, rules=RULES), clean)), plain),
        "duplicates": (Side("flags_2", again(flagging, 2)), Side("no_flags_2", again(spec, 2))),
        "duplicates_5_batches": (Side("flags_5", again(flagging, 5)), Side("no_flags_5", again(spec, 5))),
    }
    sizes = clean.sizes() | {"tables": len(spec.tables) + 1, "bad": bad.quarantined}
    comparisons = [
        Comparison(metric=f"price_of_{name}", ours=ours, other=other, sizes=sizes)
        for name, (ours, other) in pairs.items()
    ]
    results = measure(BENCHMARK.name, comparisons, repeats=options.repeats, progress=options.progress)
    spark.stop()
    return results


def with_events(spec: PipelineSpec, **changes: object) -> PipelineSpec:
    """Returns the pipeline with these changes to the declaration of its table of all events."""
    declared = spec.model_dump(mode="json")
    for table in declared["tables"]:
        if table["name"] == "events":
            table.update(changes)
    return PipelineSpec.model_validate(declared)


def spec_without_checks(spec: PipelineSpec) -> PipelineSpec:
    """Returns the pipeline without required columns."""
    declared = spec.model_dump(mode="json")
    for table in declared["tables"]:
        for column in table["columns"]:
            column["required"] = False
    return PipelineSpec.model_validate(declared)


BENCHMARK = Benchmark(
    name="prices",
    summary="the cost that quarantine, rules and duplicate flags add to landing a batch",
    run=run,
    tiny=TinySize(),
)
