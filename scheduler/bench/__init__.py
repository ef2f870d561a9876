"""Measuring the product: one JSON a run, in `docs/benchmarks`."""
