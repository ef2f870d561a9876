"""Signing in and out, one's own account, and who may sign in."""

from admin_ui.login.account import account_routes
from admin_ui.login.oidc import oidc_routes
from admin_ui.login.sign_in import sign_in_routes
from admin_ui.login.users import user_screens

__all__ = ["account_routes", "oidc_routes", "sign_in_routes", "user_screens"]
