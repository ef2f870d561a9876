"""Responses that are stored: kept, read again, gone on from, deleted."""

from gateway.services.responses.stored import MAX_CHAIN, MAX_CHAIN_BYTES, StoredResponses

__all__ = ["MAX_CHAIN", "MAX_CHAIN_BYTES", "StoredResponses"]
