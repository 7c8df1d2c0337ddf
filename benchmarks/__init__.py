"""Benchmarks that compare Deltaworks with the usual way to do the same work.

`python -m benchmarks` runs them. A benchmark is one module in this package and one entry in `benchmarks.registry`.
"""
