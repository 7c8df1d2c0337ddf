"""Side-by-side measurements: what Deltaworks does against the plain way to do the same.

`python -m benchmarks` runs them. A benchmark is one module here and one entry in `benchmarks.registry`.
"""
