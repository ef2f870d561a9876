"""A public API over the simulated engine, in this process, with a fake directory of keys."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import cache
from typing import Any, cast
from uuid import UUID

import httpx
import pytest
from starlette.types import ASGIApp

from engine.config import EngineConfig
from engine.contract import EngineInfo
from engine.cpu.runner import TorchEngine
from engine.demo import MODEL_DIR
from engine.simulated import SimulatedEngine
from engine.step_cost import load_profile
from engine.text import ChatTemplate, Tokenizer
from gateway.api.health import Health
from gateway.api.held_bytes import HeldBytes
from gateway.api.public import public_app
from gateway.domain import Principal, TenantSlo, Tier
from gateway.errors import AuthenticationFailed
from gateway.services.constraints import Constraints
from gateway.services.fair_pool import FairPool
from gateway.services.health.heartbeat import Heartbeat
from gateway.services.health.lifecycle import Lifecycle, Phase
from gateway.services.health.overload_watch import OverloadWatch
from gateway.services.health.probes import Probes
from gateway.services.inference.leased import LeasedInference
from gateway.services.inference.models import ModelRegistry, ServedModel
from gateway.services.inference.service import InferenceService
from scheduler.config import first_come
from scheduler.core import Scheduler
from scheduler.service import EngineService
from tests.fake_quotas import leased
from tests.gateway.api.scripted_service import ScriptedService
from tests.gateway.api.writes_now import WritesNow

KEY = "test-key"
# The other keys of the tenant, by what they may ask for.
TIER_KEYS = {"priority-key": Tier.PRIORITY, "flex-key": Tier.FLEX}
MODEL = "sim"
CONTEXT = 256


class OneTenant:
    """Know the keys of one tenant."""

    async def authenticate(self, token: str, timeline: object = None) -> Principal:
        if token != KEY and token not in TIER_KEYS:
            raise AuthenticationFailed
        return Principal(
            organisation_id=UUID(int=1),
            tenant_id=UUID(int=2),
            tenant="acme",
            weight=1.0,
            key_id=UUID(int=3),
            kid="k",
            max_tier=TIER_KEYS.get(token, Tier.DEFAULT),
            slo=TenantSlo(ttft_ms=500, max_gap_ms=60),
            # As if its tenant belonged to an org.
            org_id=UUID(int=7) if token == "flex-key" else None,
            org_weight=2.0 if token == "flex-key" else 1.0,
        )


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_dir(MODEL_DIR)


@pytest.fixture(scope="session")
def words(tokenizer: Tokenizer) -> list[int]:
    """Return the tokens that are letters alone."""
    return [i for i in range(tokenizer.vocab_size) if tokenizer.decode([i]).strip().isalpha()]


@cache
def demo_template() -> ChatTemplate | None:
    """Compile the demo model's chat template, once for all servers of a process."""
    return ChatTemplate.from_dir(MODEL_DIR)


@pytest.fixture
async def model(tokenizer: Tokenizer, words: list[int]) -> AsyncIterator[ServedModel]:
    with serving(tokenizer, words) as model:
        yield model


@pytest.fixture
async def paced_model(tokenizer: Tokenizer, words: list[int]) -> AsyncIterator[ServedModel]:
    """The same in real time: tokens of a stream that come apart are events of their own."""
    with serving(tokenizer, words, sleep=time.sleep) as model:
        yield model


@contextmanager
def serving(
    tokenizer: Tokenizer, words: list[int], sleep: Callable[[float], None] | None = None
) -> Iterator[ServedModel]:
    """Serve a simulated model, in virtual time unless it sleeps."""
    engine = SimulatedEngine(
        load_profile("cpu-demo"),
        vocab_size=tokenizer.vocab_size,
        max_model_len=CONTEXT,
        max_num_seqs=16,
        max_num_batched_tokens=128,
        num_blocks=64,
        block_size=16,
        alphabet=words,
        sleep=sleep,
    )
    service = EngineService(Scheduler(engine.info, first_come()), engine)
    service.start()
    yield served_model(MODEL, service, engine.info, tokenizer)
    service.stop()


@pytest.fixture(scope="session")
def torch_engine() -> Iterator[TorchEngine]:
    """The demo model, which can do all of the sampling surface."""
    config = EngineConfig(model_dir=MODEL_DIR, block_size=16, num_blocks=256, max_model_len=1024)
    engine = TorchEngine(config)
    yield engine
    engine.close()


@pytest.fixture
async def demo(tokenizer: Tokenizer, torch_engine: TorchEngine) -> AsyncIterator[ServedModel]:
    torch_engine.reset()
    service = EngineService(Scheduler(torch_engine.info, first_come()), KeptOpen(torch_engine))
    service.start()
    yield served_model("demo", service, torch_engine.info, tokenizer)
    service.stop()


@pytest.fixture
async def demo_client(demo: ServedModel) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the API over the demo model."""
    async with open_client(demo) as client:
        yield client


@pytest.fixture
def shaped_on_threads(monkeypatch: pytest.MonkeyPatch) -> list[UUID]:
    """Whose work went to the pool of threads, a tenant a piece of work."""
    tenants: list[UUID] = []
    run = FairPool.run

    async def noted(self: FairPool, tenant_id: UUID, work: Callable[[], Any], **more: float) -> Any:
        tenants.append(tenant_id)
        return await run(self, tenant_id, work, **more)

    monkeypatch.setattr(FairPool, "run", noted)
    return tenants


@pytest.fixture
async def client(model: ServedModel) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the API over the simulated engine."""
    async with open_client(model) as client:
        yield client


@pytest.fixture
def scripted() -> ScriptedService:
    """What computes for `scripted_client`."""
    return ScriptedService()


@pytest.fixture
async def scripted_client(
    scripted: ScriptedService, tokenizer: Tokenizer
) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the API over a service that does as the test says."""
    info = SimulatedEngine(
        load_profile("cpu-demo"),
        vocab_size=tokenizer.vocab_size,
        max_model_len=CONTEXT,
        max_num_seqs=16,
        max_num_batched_tokens=128,
        num_blocks=64,
        block_size=16,
    ).info
    service = cast(EngineService, scripted)
    async with open_client(served_model(MODEL, service, info, tokenizer)) as client:
        yield client


class KeptOpen:
    """Share an engine between services that each believe to own it."""

    def __init__(self, engine: TorchEngine) -> None:
        self._engine = engine
        self.info = engine.info
        self.launch, self.collect, self.reset = engine.launch, engine.collect, engine.reset

    def close(self) -> None:
        self._engine.reset()


def served_model(
    name: str, service: EngineService, info: EngineInfo, tokenizer: Tokenizer
) -> ServedModel:
    """The demo model's words over any service."""
    return ServedModel(
        name=name,
        service=service,
        info=info,
        tokenizer=tokenizer,
        chat_template=demo_template(),
        created_s=1_700_000_000,
        fingerprint="fp_test",
        aliases=("gpt-4o-mini",),
    )


def serving_health(models: Sequence[ServedModel]) -> Health:
    """Probes of a process that has started."""
    probes = Probes(Lifecycle(), Heartbeat())
    probes.attach(models, None)
    probes.lifecycle.advance(Phase.SERVING)
    return Health(probes)


@pytest.fixture
async def pressed_client(
    model: ServedModel, overload: OverloadWatch
) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a server whose overload the test decides."""
    async with open_client(model, overload) as client:
        yield client


@pytest.fixture
def overload() -> OverloadWatch:
    return OverloadWatch({}, memory_share=lambda: 0.0)


@asynccontextmanager
async def open_client(
    model: ServedModel, overload: OverloadWatch | None = None, **options: Any
) -> AsyncIterator[httpx.AsyncClient]:
    constraints = Constraints()
    inference = InferenceService(salt_key=b"salt" * 8, pool=FairPool(), constraints=constraints)
    async with leased(inference) as leases:
        app = api_over(leases, model, overload, **options)
        transport = httpx.ASGITransport(app=WritesNow(app), raise_app_exceptions=False)
        headers = {"authorization": f"Bearer {KEY}"}
        async with httpx.AsyncClient(
            transport=transport, base_url="http://test", headers=headers, timeout=60
        ) as client:
            yield client
    inference.pool.close()
    constraints.close()


def api_over(
    leases: LeasedInference,
    model: ServedModel,
    overload: OverloadWatch | None = None,
    *,
    beside: Sequence[ServedModel] = (),
    answers: HeldBytes | None = None,
    **options: Any,
) -> ASGIApp:
    """The public API over a model, and those beside it; `options` are those of `public_app`."""
    return public_app(
        models=ModelRegistry([model, *beside]),
        inference=leases,
        overload=overload or OverloadWatch({}, memory_share=lambda: 0.0),
        auth=OneTenant(),
        health=serving_health([model]),
        version="test",
        answers=answers,
        **options,
    )
