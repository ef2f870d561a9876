"""From settings to what a model is scheduled by; the engine is simulated, so no weights load."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import fakes
from engine.contract import Pooling
from engine.demo import MODEL_DIR
from engine.embedding_config import EmbeddingConfig
from engine.errors import ModelError
from engine.generation_config import SamplingDefaults
from gateway.app.model_loading import load_model, load_models
from gateway.errors import StartupFailed
from gateway.settings import Settings
from scheduler.config import PRESETS
from scheduler.request import Admit, Band


def test_settings_decide_how_a_scheduler_starts() -> None:
    """Policy, preset, loss, queue bound and prefix cache are those of the settings."""
    settings = Settings(
        engine="simulated",
        scheduler_policy="fcfs",
        scheduler_preset="low-latency",
        scheduler_max_throughput_loss=0.1,
        max_num_queued=7,
        prefix_caching=False,
    )
    config = load_model(settings, version="test").service.config
    assert config.fairness.policy == "fcfs"
    assert config.fairness.max_throughput_loss == 0.1
    assert config.composer == PRESETS["low-latency"].composer
    assert config.admission.max_num_queued == 7
    assert not config.prefix_caching


def test_without_settings_tenants_are_served_fairly() -> None:
    """The default is the virtual token counter in the mixed preset."""
    config = load_model(Settings(engine="simulated"), version="test").service.config
    assert config.fairness == PRESETS["mixed"].fairness
    assert config.fairness.policy == "vtc"
    assert config.composer == PRESETS["mixed"].composer


@pytest.mark.parametrize("name", ["policy", "preset"])
def test_a_policy_that_does_not_exist_stops_the_start(name: str) -> None:
    """One line names the setting and what could be chosen."""
    settings = Settings(engine="simulated", **{f"scheduler_{name}": "nope"})
    with pytest.raises(StartupFailed, match=rf"SLUICE_SCHEDULER_{name.upper()}: .*(vtc|mixed)"):
        load_model(settings, version="test")


def test_a_models_own_sampling_is_served_unless_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """`auto` reads generation_config.json, `none` (vLLM's `vllm`) does not even look at it.

    What this engine has no means for is left out, and said.
    """
    shutil.copy(MODEL_DIR / "config.json", tmp_path)
    file = tmp_path / "generation_config.json"
    file.write_text('{"temperature": 0.6, "top_k": 20, "repetition_penalty": 1.05}')
    asked = {"engine": "simulated", "model": tmp_path}
    served = load_model(Settings(**asked), version="test")
    assert served.sampling_defaults == SamplingDefaults(temperature=0.6, top_k=20)
    assert "repetition_penalty of 1.05 is left out" in caplog.text
    file.write_text('{"temperature": "warm"}')
    with pytest.raises(ModelError, match=r'generation_config\.json: temperature is "warm"'):
        load_model(Settings(**asked), version="test")
    for word in ("none", "vllm"):
        plain = load_model(Settings(**asked, generation_config=word), version="test")
        assert plain.sampling_defaults == SamplingDefaults()


def test_a_model_of_embeddings_is_loaded_beside() -> None:
    """The demo's weights make vectors under a name of their own, which must not be the other's."""
    asked = {"engine": "simulated", "embedding_model": "demo", "embedding_matryoshka": True}
    chat, vectors = load_models(Settings(**asked), version="test")
    assert (chat.name, chat.embedding) == ("sluice-demo", None)
    assert vectors.name == "sluice-demo-embedding"
    assert vectors.embedding == EmbeddingConfig(pooling=Pooling.MEAN, dimensions=())
    assert (vectors.info.pooling, vectors.info.device) == (Pooling.MEAN, "cpu")
    with pytest.raises(StartupFailed, match="SLUICE_EMBEDDING_MODEL_NAME: two models"):
        load_models(Settings(**asked, embedding_model_name="sluice-demo"), version="test")


def test_tables_are_loaded_in_their_order() -> None:
    """Each by its name and aliases, with its own options, policy and share of the KV memory."""
    tables = [
        {"directory": "demo", "aliases": ["small"], "max_num_seqs": 3, "engine": "cpu"},
        {"directory": "demo", "name": "b", "scheduler_policy": "fcfs", "kv_share": 0.25},
        {"directory": "demo", "role": "embedding", "kv_share": 0.25, "max_model_len": 128},
    ]
    settings = Settings(engine="simulated", models=tables, kv_cache_bytes=4 << 20, max_num_seqs=5)
    first, second, vectors = load_models(settings, version="test")
    assert [one.name for one in (first, second, vectors)] == [
        "sluice-demo",
        "b",
        "sluice-demo-embedding",
    ]
    assert (first.aliases, first.info.max_num_seqs, second.info.max_num_seqs) == (("small",), 3, 5)
    assert (first.info.device, second.info.device) == ("cpu", "simulated")
    policies = [one.service.config.fairness.policy for one in (first, second, vectors)]
    assert policies == ["vtc", "fcfs", "vtc"]
    assert vectors.info.max_model_len == 128
    assert first.info.num_blocks == 2 * vectors.info.num_blocks
    assert second.service._place is None


def test_batch_work_of_a_model_takes_from_others_what_may_be_lost() -> None:
    """Its place among the engines of a CPU asks the scheduler, whose configuration may change."""
    settings = Settings(
        engine="cpu", models=[{"directory": "demo"}, {"directory": "demo", "name": "b"}]
    )
    service = load_models(settings, version="test")[0].service
    assert service._place is not None
    assert not service._place.has_spare_work()
    batch = fakes.make_request(prompt=range(9), band=Band.BATCH)
    assert isinstance(service._scheduler.offer(batch, 0.0), Admit)
    assert service._place.has_spare_work()
    assert service._place.spare_weight(2.0) == pytest.approx(0.2 / 0.8)


def test_what_is_wrong_with_a_table_is_told_by_its_name(tmp_path: Path) -> None:
    """Before anything is loaded: a directory that is not there, a policy that does not exist."""
    good = {"directory": "demo"}
    for bad, said in (
        ({"directory": tmp_path / "none"}, r"\[\[models\]\] b: .*no such directory"),
        ({"directory": "demo", "scheduler_policy": "x"}, r"\[\[models\]\] b: SLUICE_SCHED"),
        ({"directory": tmp_path, "role": "embedding"}, r"\[\[models\]\] b: .*config\.json"),
    ):
        settings = Settings(engine="simulated", models=[good, {"name": "b"} | bad])
        with pytest.raises(StartupFailed, match=said):
            load_models(settings, version="test")


def test_a_tokenizer_that_forgets_its_end_stops_the_start(tmp_path: Path) -> None:
    """Where the last token is pooled, one that is promised and not appended would be missed."""
    shutil.copytree(MODEL_DIR, tmp_path / "model")
    file = tmp_path / "model" / "tokenizer_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"add_eos_token": True}))
    settings = Settings(engine="simulated", embedding_model=tmp_path / "model")
    with pytest.raises(ModelError, match="add_eos_token"):
        load_models(settings, version="test")
