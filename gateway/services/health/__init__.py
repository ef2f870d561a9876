"""How the process is: its phase, its pulse, its stores, how hard it is pressed."""

from gateway.services.health.heartbeat import Heartbeat
from gateway.services.health.lifecycle import Lifecycle, Phase
from gateway.services.health.overload_watch import OverloadWatch
from gateway.services.health.probes import Part, Probes
from gateway.services.health.store_watch import StoreWatch

__all__ = ["Heartbeat", "Lifecycle", "OverloadWatch", "Part", "Phase", "Probes", "StoreWatch"]
