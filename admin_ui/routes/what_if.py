"""What the last minutes would have been under other policies: asked by a form, answered later.

Every figure here is simulated, and says so, beside how far the replay of what was in force is from
what really happened.
"""

from __future__ import annotations

from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from admin_ui.pages import Pages
from admin_ui.screens import Form, Words, errors_of, read_form, screen, see
from admin_ui.services import UiServices
from gateway.api.admin.routing import OPERATORS, VIEWERS, admin_of
from gateway.api.errors import classify
from gateway.errors import InvalidRequest, Overloaded
from gateway.services.what_if import Job
from scheduler.policies.registry import policy_names

SPANS: Final = (("5", "5 minutes"), ("15", "15 minutes"), ("60", "1 hour"))
CHOSEN: Final = ("vtc", "fcfs", "edf", "sjf")
_BANDS: Final = ("priority", "default", "flex", "batch")
_PATH: Final = "/admin/scheduler/what-if"


def what_if_routes(services: UiServices, pages: Pages) -> list[Route]:
    """Declare the form with what was asked, and the page of an answer."""
    what_if = _WhatIfPages(services, pages)
    return [
        screen(_PATH, what_if.show, allows=VIEWERS),
        screen(_PATH, what_if.ask, method="POST", allows=OPERATORS),
        screen(f"{_PATH}/{{id}}", what_if.answer, allows=VIEWERS),
        screen(f"{_PATH}/{{id}}/table", what_if.table, allows=VIEWERS),
    ]


class _WhatIfPages:
    def __init__(self, services: UiServices, pages: Pages) -> None:
        self._services = services
        self._pages = pages

    async def show(self, request: Request) -> Response:
        return self._form(request, Form([]), Words())

    async def ask(self, request: Request) -> Response:
        form = await read_form(request)
        try:
            job = self._services.what_if.ask(
                form.text("model"), form.integer("minutes") or 0, form.texts("policies")
            )
        except (InvalidRequest, Overloaded) as exc:
            return self._form(request, form, errors_of(exc), status=classify(exc)[0])
        return see(f"{_PATH}/{job.id}")

    async def answer(self, request: Request) -> Response:
        return self._pages.answer(request, "what_if_answer.html", self._of(request))

    async def table(self, request: Request) -> Response:
        return self._pages.answer(request, "what_if_table.html", self._of(request))

    def _of(self, request: Request) -> dict[str, Any]:
        job = self._services.what_if.job(request.path_params["id"])
        return {"job": job, "bands": _bands(job), "best": _best(job)}

    def _form(self, request: Request, form: Form, errors: Words, *, status: int = 200) -> Response:
        context = {
            "values": form.values(),
            "chosen": form.texts("policies") or CHOSEN,
            "errors": errors,
            "models": [one["model"] for one in self._services.scheduling.describe()],
            "policies": policy_names(),
            "spans": SPANS,
            "jobs": self._services.what_if.jobs(),
            "may_change": admin_of(request).role in OPERATORS,
        }
        return self._pages.answer(request, "what_if.html", context, status=status)


def _bands(job: Job) -> list[str]:
    """Return the classes that anything was in, the most urgent first."""
    met = set(job.real_p95_s) | {band for one in job.found for band in one["ttft_p95_s"]}
    return [band for band in _BANDS if band in met]


def _best(job: Job) -> float:
    """Return the highest goodput, which the bars are drawn beside."""
    return max((one["goodput_rps"] or 0.0 for one in job.found), default=0.0)
