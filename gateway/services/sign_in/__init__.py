"""People who sign in: passwords, links, keys, another issuer, and the sessions that they begin."""

from gateway.services.sign_in.attempts import Attempts
from gateway.services.sign_in.failed_logins import FailedLogins
from gateway.services.sign_in.issuer import Issuer, IssuerOptions
from gateway.services.sign_in.passwords import Passwords
from gateway.services.sign_in.service import SignedIn, SignIn
from gateway.services.sign_in.sessions import Sessions, Watched
from gateway.services.sign_in.visits import VISIT_S, Visits

__all__ = [
    "VISIT_S",
    "Attempts",
    "FailedLogins",
    "Issuer",
    "IssuerOptions",
    "Passwords",
    "Sessions",
    "SignIn",
    "SignedIn",
    "Visits",
    "Watched",
]
