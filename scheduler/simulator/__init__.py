"""The production scheduler on a virtual clock: workloads, runs, metrics and suites."""
