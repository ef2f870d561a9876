"""Serves the scheduler and the engine to tenants over HTTP."""

from typing import Final

# What is installed; on package indexes "sluice" is another project.
DISTRIBUTION: Final = "sluice-gateway"
