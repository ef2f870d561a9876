"""What was used and what it costs: journalled on disk, written, summed."""

from gateway.services.ledger.exports import Exports
from gateway.services.ledger.keyed_answers import KeyedAnswers
from gateway.services.ledger.prices import PriceBook, PriceService, price_units, require_model
from gateway.services.ledger.spool import Spool
from gateway.services.ledger.usage import UsageAsked, UsageService
from gateway.services.ledger.writer import LedgerWriter

__all__ = [
    "Exports",
    "KeyedAnswers",
    "LedgerWriter",
    "PriceBook",
    "PriceService",
    "Spool",
    "UsageAsked",
    "UsageService",
    "price_units",
    "require_model",
]
