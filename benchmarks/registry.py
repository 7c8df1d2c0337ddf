"""All benchmarks. A new one is a module of this package with a `BENCHMARK`, and its line here."""

from __future__ import annotations

from benchmarks import fan_out, freshness, growth, kinesis, prices, single_table, trigger
from benchmarks.harness import Benchmark

BENCHMARKS: dict[str, Benchmark] = {
    module.BENCHMARK.name: module.BENCHMARK
    for module in (single_table, fan_out, growth, trigger, prices, kinesis, freshness)
}
