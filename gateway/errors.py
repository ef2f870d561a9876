"""The errors that a caller of the gateway can meet.

    GatewayError
    ├── InvalidRequest          the request cannot be understood or obeyed
    │   ├── ContextLengthExceeded
    │   ├── UnsupportedParameter
    │   ├── ConstraintRefused   no answer can be held to the form that it asks for
    │   ├── ConstraintUnmet     its answer came to where nothing fits that form
    │   ├── BodyTooLarge
    │   ├── MalformedRequest    what came is not a request that this server takes
    │   ├── HeadTooLarge
    │   ├── RequestTimedOut     its head or body did not come to its end
    │   ├── FileTooLarge        longer than a file may be
    │   ├── RangeNotSatisfiable none of the bytes that were asked for are there
    │   ├── AboveCeiling        more than operators let this tenant have
    │   └── IdempotencyMismatch its Idempotency-Key came before with another body
    ├── AuthenticationFailed    no key, or not a live one: one text for every cause
    │   ├── TooManyFailures     so from this address again and again
    │   └── LoginFailed         no sign-in by that name and password: one text for every cause
    │       ├── LoginLimited    tried too often, by account or address
    │       └── LinkOver        the link was used, or its time is over
    ├── PermissionDenied
    │   └── SetByOperator       a restriction that only operators change
    ├── NotFound
    │   ├── ModelNotFound
    │   ├── ResponseNotFound    no stored response of this tenant
    │   └── FileNotFound        no file of this tenant
    │       └── StoredFileMissing   it is listed, and its bytes are gone
    ├── Conflict
    │   ├── FileInUse           a batch still reads it
    │   ├── VersionConflict     somebody else changed it since it was read
    │   │   └── PlanChanged     what would be done is not what was agreed to
    │   ├── IdempotencyConflict the same request still runs
    │   └── AnswerNotKept       it ran, and its answer is gone
    ├── TenantLimited           the tenant's own limit
    │   ├── BodiesTooLarge      of what it has sent and is not yet understood
    │   ├── AnswersTooLarge     of what is computed and not yet sent
    │   ├── StorageFull         of bytes that it keeps in files
    │   ├── EnqueuedTokensExceeded  of what its batches wait to have computed
    │   └── QuotaExhausted      nothing is left of it for a long time
    ├── Overloaded              our capacity
    │   ├── Saturated           it reads nothing more for now
    │   ├── AnswersSaturated    it gathers no more long answers for now
    │   ├── StoreUnavailable    the database does not answer
    │   │   └── CountersUnavailable  what limits are counted in does not answer
    │   ├── StorageUnavailable  what files are kept in does not answer, or is full
    │   └── ServerDraining      it ended the request because it stops itself
    └── InternalFailure         our fault

    StartupFailed               the server cannot start; one line for the operator
    ├── DataDirectoryInUse
    └── BackupRefused           what is to be backed up or restored cannot be, as it is

`message` is public, `detail` goes to the log alone, `limit` says in our own words which limit it
was, for whoever explains a refusal. Status codes are not known here: they stand
in `gateway.api.errors`.
"""

from __future__ import annotations

from collections.abc import Collection

from gateway.domain.quota import Standing


class GatewayError(Exception):
    """Catch this to catch whatever the gateway raises on purpose."""

    code: str | None = None
    message = "The request failed."

    def __init__(
        self,
        message: str | None = None,
        *,
        param: str | None = None,
        code: str | None = None,
        detail: str | None = None,
        retry_after_s: float | None = None,
        limit: str = "",
    ) -> None:
        self.limit = limit
        self.message = message or type(self).message
        self.param = param
        self.code = code or type(self).code
        self.detail = detail
        self.retry_after_s = retry_after_s
        super().__init__(detail or self.message)


class InvalidRequest(GatewayError):
    """Mend the field that `param` names."""

    code = "invalid_value"
    message = "The request is not valid."


class ContextLengthExceeded(InvalidRequest):
    """Shorten the prompt or lower `max_tokens`."""

    code = "context_length_exceeded"


class UnsupportedParameter(InvalidRequest):
    """Leave the parameter out: this server cannot do what it asks."""

    code = "unsupported_parameter"


class ConstraintRefused(InvalidRequest):
    """Mend the schema, pattern or grammar that `param` names, or ask for less."""

    code = "invalid_constraint"


class ConstraintUnmet(InvalidRequest):
    """Ask for less beside the constraint: what else was asked for left no token that it allows."""

    code = "constraint_unmet"
    message = (
        "The answer came to where no token is left that its schema or grammar allows. Ask for a "
        "simpler one, or leave out what forbids tokens beside it, as 'min_tokens'."
    )


class BodyTooLarge(InvalidRequest):
    """Send a smaller body."""

    code = "body_too_large"


class MalformedRequest(InvalidRequest):
    """Send HTTP/1.1 that can be read in one way only."""

    code = "malformed_request"


class HeadTooLarge(InvalidRequest):
    """Send fewer or shorter headers."""

    code = "headers_too_large"


class RequestTimedOut(InvalidRequest):
    """Send the request in one go."""

    code = "request_timeout"
    message = "The request did not come to its end in time."


class FileTooLarge(InvalidRequest):
    """Send less, or several files."""

    code = "file_too_large"
    message = "The file is too large."


class RangeNotSatisfiable(InvalidRequest):
    """Ask for bytes below `size_bytes`."""

    code = "range_not_satisfiable"

    def __init__(self, size_bytes: int) -> None:
        super().__init__(f"There are {size_bytes} bytes, and none in this range.")
        self.size_bytes = size_bytes


class AboveCeiling(InvalidRequest):
    """Ask for less, or have an operator raise the tenant's ceiling."""

    code = "above_ceiling"


class IdempotencyMismatch(InvalidRequest):
    """Use a new `Idempotency-Key` for a new request."""

    code = "idempotency_mismatch"
    message = "This Idempotency-Key was used for another request. Use a new one."


class AuthenticationFailed(GatewayError):
    """Send a live key. Why a key was refused is never told."""

    code = "invalid_api_key"
    message = "Incorrect API key provided. Send a live key as 'Authorization: Bearer <key>'."


class TooManyFailures(AuthenticationFailed):
    """Wait `retry_after_s`, or send a live key: one is taken at any time."""

    code = "too_many_failures"
    message = "Too many requests without a live key come from your address. Check the key."


class LoginFailed(AuthenticationFailed):
    """Send the right name and password. Which of them was wrong is never told."""

    code = "login_failed"
    message = "The name or the password is not right."


class LoginLimited(LoginFailed):
    """Wait `retry_after_s`."""

    code = "login_limited"
    message = "Too many attempts to sign in."


class LinkOver(LoginFailed):
    """Ask for a new link."""

    code = "link_over"
    message = "This link was used already, or its time is over. Ask for a new one."


class NotInvited(LoginFailed):
    """Have an owner make a user for you first."""

    code = "not_invited"
    message = "Nobody here was invited as you."


class PermissionDenied(GatewayError):
    """Use a credential that has the right that the message names."""

    code = "permission_denied"
    message = "This credential may not do that."


class SetByOperator(PermissionDenied):
    """Have an operator change it."""

    code = "set_by_operator"

    def __init__(self, names: Collection[str]) -> None:
        fields = ", ".join(f"'{name}'" for name in sorted(names))
        super().__init__(
            f"An operator has set {fields}; only an operator changes it.", param=min(names)
        )


class NotFound(GatewayError):
    """Name something that exists and is yours; both cases look the same."""

    code = "not_found"
    message = "Not found."


class ModelNotFound(NotFound):
    """Choose a model that `GET /v1/models` lists."""

    code = "model_not_found"


class ResponseNotFound(NotFound):
    """Nothing with this id is stored of this tenant's."""

    code = "response_not_found"
    message = "There is no stored response with this id."


class FileNotFound(NotFound):
    """List the files; another tenant's do not exist."""

    code = "file_not_found"
    message = "There is no such file."


class StoredFileMissing(FileNotFound):
    """Send the file again: what it held was removed meanwhile, or lost."""

    message = "What this file held is gone."


class Conflict(GatewayError):
    """Look at the present state, then decide again."""

    code = "conflict"
    message = "The request conflicts with the present state."


class BatchNotEnded(Conflict):
    """Wait until the batch has ended, or cancel it."""

    code = "batch_not_ended"
    message = "The batch has not ended."


class FileInUse(Conflict):
    """Cancel the batch, or wait until it has ended."""

    code = "file_in_use"
    message = "A batch that has not ended reads this file."


class IdempotencyConflict(Conflict):
    """Wait `retry_after_s`, then send the same request again for its answer."""

    code = "idempotency_conflict"
    message = "A request with this Idempotency-Key is still running. Try again shortly."


class AnswerNotKept(Conflict):
    """Use a new `Idempotency-Key` to have the request run, and charged, again."""

    code = "idempotency_answer_not_kept"
    message = (
        "The request with this Idempotency-Key was answered, but its answer is not kept: it was "
        "too large, or is too old, or too many came after it. To run it again, use a new key."
    )


class VersionConflict(Conflict):
    """Read `current`, then send the change again with its version."""

    code = "version_conflict"
    message = "It was changed since you read it. Look at 'current', then decide again."

    def __init__(self, current: object, yours: object = None) -> None:
        super().__init__(param="version")
        self.current = current
        self.yours = yours


class PlanChanged(VersionConflict):
    """Look at the plan in `current`, then send its fingerprint, or what is wanted now."""

    code = "plan_changed"
    message = "It was changed since the plan was made. Look at the plan that there is now."


class TenantLimited(GatewayError):
    """Wait `retry_after_s`: the tenant is at a limit of its own.

    With `never_fits` the same request is refused whenever it comes. `standing` is how far the
    limit is used.
    """

    code = "rate_limit_exceeded"
    message = "Rate limit reached."
    never_fits = False
    standing: Standing | None = None


class BodiesTooLarge(TenantLimited):
    """Wait until bodies that were sent have been read; this one's connection is closed."""

    code = "bodies_too_large"
    message = "Too many large requests of this tenant are being read."


class AnswersTooLarge(TenantLimited):
    """Wait until answers that are being gathered have been sent, or stream them."""

    code = "answers_too_large"
    message = "Too much of this tenant's answers is being gathered or waits to be sent."


class StorageFull(TenantLimited):
    """Delete files, or have the limit raised."""

    never_fits = True
    code = "storage_full"
    message = "The files of this tenant take up all that it may store."


class EnqueuedTokensExceeded(TenantLimited):
    """Submit it once other batches have ended, or as several smaller ones."""

    never_fits = True
    code = "token_limit_exceeded"
    message = "The batches of this tenant wait with as many tokens as they may."


class QuotaExhausted(TenantLimited):
    """Do not try again: a quota or a budget is used up until it begins anew."""

    never_fits = True
    code = "insufficient_quota"
    message = "The quota is used up."


class Overloaded(GatewayError):
    """Wait `retry_after_s`: the server has no room for anyone."""

    code = "overloaded"
    message = "The server is overloaded. Try again later."


class Saturated(Overloaded):
    """Wait: the server reads no more requests for now, and closes this connection."""


class AnswersSaturated(Overloaded):
    """Wait: answers of others take up what there is for those that are gathered."""

    code = "answers_saturated"
    message = "Too much of answers is being gathered or waits to be sent."


class StoreUnavailable(Overloaded):
    """Try again shortly: the server cannot reach its database."""

    code = "store_unavailable"
    message = "The server cannot reach its database. Try again shortly."


class CountersUnavailable(StoreUnavailable):
    """Try again shortly: the server cannot count, and lets through only what needs no counting."""

    code = "quota_unavailable"
    message = "The server cannot check the limits of this key. Try again shortly."


class StorageUnavailable(Overloaded):
    """Try again shortly: the server cannot reach what it keeps files in."""

    code = "storage_unavailable"
    message = "The server cannot reach its file storage. Try again shortly."


class IssuerUnavailable(Overloaded):
    """Sign in another way, or later: the issuer of sign-ins does not answer as one does."""

    code = "issuer_unavailable"
    message = "The issuer of sign-ins does not answer. Try again shortly."


class ServerDraining(Overloaded):
    """Send the request again: another process, or the next one here, takes it."""

    code = "server_draining"
    message = "The server is shutting down and could not finish the request. Send it again."


class InternalFailure(GatewayError):
    """Report it with the request id; nothing the caller sent caused it."""

    code = "internal_error"
    message = "The server had an error while processing the request."


class StartupFailed(Exception):
    """Do what the message says, then start again; no request ever meets this."""


class DataDirectoryInUse(StartupFailed):
    """Stop the other process, or choose another data directory."""


class BackupRefused(StartupFailed):
    """Mend what the message names: a backup that is not whole, a place that is not empty."""
