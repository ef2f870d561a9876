"""Who is next, what that cost whom, and when things are due.

`FairTree` orders what waits: bands, organisations, tenants, keys, requests, each by a policy of
`scheduler.policies`; its nodes keep what was served below them. `Charges` charges what a request
costs, in the `Unit` that is chosen. Every time that a promise sets comes from `deadlines`.
`Windows` forces batch work up in time. `ShareWindow` says how evenly tenants were served, and
`Replicas` has them weigh less for what others serve them.
"""

from scheduler.order.charges import Charges
from scheduler.order.deadlines import (
    NEVER,
    first_due_s,
    given_up_s,
    next_due_s,
    paced_s,
    start_by_s,
)
from scheduler.order.fair_tree import FairTree
from scheduler.order.replicas import Account, Rates, Replicas
from scheduler.order.share_window import BandShares, ShareWindow, TenantShare
from scheduler.order.tree_node import Level, Node
from scheduler.order.units import StepPrices, Tokens, Unit
from scheduler.order.windows import Windows

__all__ = [
    "NEVER",
    "Account",
    "BandShares",
    "Charges",
    "FairTree",
    "Level",
    "Node",
    "Rates",
    "Replicas",
    "ShareWindow",
    "StepPrices",
    "TenantShare",
    "Tokens",
    "Unit",
    "Windows",
    "first_due_s",
    "given_up_s",
    "next_due_s",
    "paced_s",
    "start_by_s",
]
