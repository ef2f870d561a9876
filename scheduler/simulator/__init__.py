"""The production scheduler on a virtual clock: workloads, runs, metrics and suites.

One large room: suites and readers of traces are a file each, and stand on the same few.
"""
