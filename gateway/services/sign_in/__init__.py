"""People who sign in: passwords, links, keys of tenants, and the sessions that they begin."""

from gateway.services.sign_in.attempts import Attempts
from gateway.services.sign_in.failed_logins import FailedLogins
from gateway.services.sign_in.passwords import Passwords
from gateway.services.sign_in.service import SignedIn, SignIn
from gateway.services.sign_in.sessions import Sessions, Watched

__all__ = [
    "Attempts",
    "FailedLogins",
    "Passwords",
    "Sessions",
    "SignIn",
    "SignedIn",
    "Watched",
]
