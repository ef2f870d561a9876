"""Who speaks: keys and admin tokens, and what is remembered of them."""

from gateway.services.auth.admin_authenticator import AdminAuthenticator
from gateway.services.auth.authenticator import Authenticator
from gateway.services.auth.failures import Failures
from gateway.services.auth.issued import IssuedTokens
from gateway.services.auth.key_scopes import admits, checked_cidrs, checked_models
from gateway.services.auth.upkeep import AuthUpkeep, tell_ended

__all__ = [
    "AdminAuthenticator",
    "AuthUpkeep",
    "Authenticator",
    "Failures",
    "IssuedTokens",
    "admits",
    "checked_cidrs",
    "checked_models",
    "tell_ended",
]
