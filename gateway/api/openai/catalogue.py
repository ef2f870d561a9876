"""`GET /v1/models` and `GET /v1/models/{id}`: what is served here, as far as a key may use it."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from gateway.api.access import may_use, require_model
from gateway.api.openai.schemas import ModelCard, ModelList
from gateway.domain import Principal
from gateway.services.inference import ModelRegistry, ServedModel


class Catalogue:
    """Answer what is served here."""

    def __init__(self, models: ModelRegistry) -> None:
        self._models = models

    async def list(self, request: Request) -> Response:
        principal: Principal = request.scope["state"]["principal"]
        usable = [model for model in self._models if may_use(principal, model)]
        return _json(ModelList([_card(model) for model in usable]))

    async def show(self, request: Request) -> Response:
        model = self._models.get(request.path_params["model"])
        require_model(request.scope["state"]["principal"], model)
        return _json(_card(model))


def _card(model: ServedModel) -> ModelCard:
    return ModelCard(
        id=model.name,
        created=model.created_s,
        max_model_len=model.info.max_model_len,
        sampling_defaults=model.sampling_defaults,
        root=model.name,
    )


def _json(body: msgspec.Struct) -> Response:
    return Response(msgspec.json.encode(body), media_type="application/json")
