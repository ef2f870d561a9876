"""Measuring the product: one JSON a run, in `docs/benchmarks`.

One large room: a workload is a file, and all stand on the same setup and report.
"""
