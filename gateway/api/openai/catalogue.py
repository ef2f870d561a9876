"""`GET /v1/models` and `GET /v1/models/{id}`: what is served here, as far as a key may use it.

An alias is listed as a model of its own, since clients look for the name that they were set to; its
`root` is the model that it stands for.
"""

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
        cards = [_card(model, name) for model in usable for name in (model.name, *model.aliases)]
        return _json(ModelList(cards))

    async def show(self, request: Request) -> Response:
        name = request.path_params["model"]
        model = self._models.get(name)
        require_model(request.scope["state"]["principal"], model)
        return _json(_card(model, name))


def _card(model: ServedModel, name: str) -> ModelCard:
    return ModelCard(
        id=name,
        created=model.created_s,
        max_model_len=model.info.max_model_len,
        sampling_defaults=model.sampling_defaults,
        root=model.name,
    )


def _json(body: msgspec.Struct) -> Response:
    return Response(msgspec.json.encode(body), media_type="application/json")
