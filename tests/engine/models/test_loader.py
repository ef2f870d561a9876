"""open_weights: safetensors in one file or many, and what it refuses to read."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from engine.errors import ModelError
from engine.models.loader import WeightSource, open_weights


def opened(model_dir: Path, dtype: torch.dtype = torch.float32) -> WeightSource:
    return open_weights(
        model_dir, load_format="auto", dtype=dtype, device=torch.device("cpu"), seed=0
    )


def write_index(model_dir: Path, weight_map: object) -> None:
    (model_dir / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


@pytest.mark.parametrize("saved", [torch.float32, torch.bfloat16, torch.float16])
def test_a_single_file_is_read(tmp_path: Path, saved: torch.dtype) -> None:
    """A tensor comes back in the dtype that was asked for, with the values that were saved."""
    tensor = torch.tensor([[1.5, -2.0, 0.25]], dtype=saved)
    save_file({"w": tensor}, tmp_path / "model.safetensors")
    taken = opened(tmp_path, torch.float32).take("w", 1, 3)
    assert taken.dtype == torch.float32
    assert taken.tolist() == [[1.5, -2.0, 0.25]]


def test_shards_are_read_through_the_index(tmp_path: Path) -> None:
    """Each tensor is read from the shard that the index names."""
    save_file({"a": torch.ones(2)}, tmp_path / "model-1.safetensors")
    save_file({"b": torch.zeros(3)}, tmp_path / "model-2.safetensors")
    write_index(tmp_path, {"a": "model-1.safetensors", "b": "model-2.safetensors"})
    weights = opened(tmp_path)
    assert weights.take("a", 2).tolist() == [1, 1]
    assert weights.take("b", 3).tolist() == [0, 0, 0]


def test_links_of_a_download_cache_are_followed(tmp_path: Path) -> None:
    """A shard may be a link to a file elsewhere, as in a Hugging Face cache."""
    (tmp_path / "blobs").mkdir()
    (tmp_path / "model").mkdir()
    save_file({"a": torch.ones(2)}, tmp_path / "blobs" / "0123")
    (tmp_path / "model" / "part.safetensors").symlink_to(tmp_path / "blobs" / "0123")
    write_index(tmp_path / "model", {"a": "part.safetensors"})
    assert opened(tmp_path / "model").take("a", 2).tolist() == [1, 1]


def test_weights_outlive_their_file(tmp_path: Path) -> None:
    """A file that is overwritten after loading does not change the weights."""
    file = tmp_path / "model.safetensors"
    save_file({"w": torch.ones(4096)}, file)
    taken = opened(tmp_path).take("w", 4096)
    with file.open("r+b") as f:
        f.seek(file.stat().st_size - 4096 * 4)
        f.write(b"\xff" * 4096 * 4)
    assert taken.sum() == 4096


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    """A tensor that no file holds is named together with the directory."""
    save_file({"a": torch.ones(2)}, tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match=r"tensor lm_head\.weight is in none of") as caught:
        opened(tmp_path).take("lm_head.weight", 2)
    assert str(tmp_path) in str(caught.value)


def test_tensors_that_nobody_took_are_refused(tmp_path: Path) -> None:
    """A tensor below the prefix that no part of the model asked for is named with its file."""
    tensors = {name: torch.ones(2) for name in ("layers.0.a", "layers.0.a_bias", "other")}
    save_file(tensors, tmp_path / "model.safetensors")
    weights = opened(tmp_path)
    weights.take("layers.0.a", 2)
    message = r"model\.safetensors: tensor layers\.0\.a_bias is in no model that config\.json"
    with pytest.raises(ModelError, match=message):
        weights.refuse_rest_of("layers.")
    weights.take("layers.0.a_bias", 2)
    weights.refuse_rest_of("layers.")


def test_saved_rotary_frequencies_are_ignored(tmp_path: Path) -> None:
    """Old checkpoints hold frequencies that follow from config.json."""
    name = "layers.0.self_attn.rotary_emb.inv_freq"
    save_file({name: torch.ones(2)}, tmp_path / "model.safetensors")
    opened(tmp_path).refuse_rest_of("layers.")


def test_a_wrong_shape_is_told_with_both_shapes(tmp_path: Path) -> None:
    """The message has the file, the tensor, the shape found and the shape expected."""
    file = tmp_path / "model.safetensors"
    save_file({"a": torch.ones(2, 3)}, file)
    with pytest.raises(ModelError) as caught:
        opened(tmp_path).take("a", 3, 3)
    assert str(caught.value).startswith(
        f"{file}: tensor a has shape [2, 3], config.json asks for [3, 3]"
    )


def test_quantized_numbers_are_refused(tmp_path: Path) -> None:
    """Integer weights need a scale that nothing here applies."""
    save_file({"a": torch.ones(2, dtype=torch.int8)}, tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match="tensor a is int8; convert"):
        opened(tmp_path).take("a", 2)


def test_a_tensor_that_the_shard_lacks_is_named(tmp_path: Path) -> None:
    """An index that promises a tensor which its shard does not hold is caught."""
    save_file({"a": torch.ones(2)}, tmp_path / "x.safetensors")
    write_index(tmp_path, {"b": "x.safetensors"})
    with pytest.raises(ModelError, match=r"x\.safetensors: tensor b cannot be read"):
        opened(tmp_path).take("b", 2)


@pytest.mark.parametrize("keep", [0, 4, 30, -8])
def test_a_truncated_file_is_named(tmp_path: Path, keep: int) -> None:
    """A download that broke off, in the header or in the data, is refused in one line."""
    file = tmp_path / "model.safetensors"
    save_file({"a": torch.ones(64)}, file)
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(ModelError, match="is truncated or not a safetensors file") as caught:
        opened(tmp_path)
    assert str(caught.value).startswith(str(file))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "shard",
    [
        "../x.safetensors",
        "sub/../../x.safetensors",
        "/etc/x.safetensors",
        "..\\x.safetensors",
        "x\0.safetensors",
        7,
        None,
    ],
)
def test_a_shard_outside_the_directory_is_refused(tmp_path: Path, shard: object) -> None:
    """An index cannot make the loader open a file elsewhere, even one that is there."""
    (tmp_path / "model").mkdir()
    save_file({"a": torch.ones(2)}, tmp_path / "x.safetensors")
    write_index(tmp_path / "model", {"a": shard})
    with pytest.raises(ModelError, match="lies outside the model's directory"):
        opened(tmp_path / "model")


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    """A shard of the index that was not fetched is named."""
    write_index(tmp_path, {"a": "gone.safetensors"})
    with pytest.raises(ModelError, match=r"gone\.safetensors: no such file"):
        opened(tmp_path).take("a", 2)


@pytest.mark.parametrize("index", ["", "[]", "{}", '{"weight_map": []}', "[" * 100_000])
def test_a_broken_index_is_named(tmp_path: Path, index: str) -> None:
    """An index that is cut off or of another shape is refused by name."""
    (tmp_path / "model.safetensors.index.json").write_text(index)
    with pytest.raises(ModelError, match=r"index\.json: (is not valid JSON|has no weight_map)"):
        opened(tmp_path)


def test_pickle_is_never_loaded(tmp_path: Path) -> None:
    """A directory that only has pickled weights is refused, and the pickle does not run."""

    class Bomb:
        def __reduce__(self) -> tuple[object, ...]:
            return (Path.touch, (tmp_path / "ran",))

    (tmp_path / "pytorch_model.bin").write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(ModelError, match=r"pytorch_model\.bin: pickled weights .* convert"):
        opened(tmp_path)
    write_index(tmp_path, {"a": "pytorch_model.bin"})
    with pytest.raises(ModelError, match="is not a safetensors file; convert"):
        opened(tmp_path)
    assert not (tmp_path / "ran").exists()


def test_a_directory_without_weights_is_named(tmp_path: Path) -> None:
    """A directory with no weights at all says which files it should have."""
    with pytest.raises(ModelError, match=r"holds neither model\.safetensors nor"):
        opened(tmp_path)


def test_dummy_weights_follow_the_seed(tmp_path: Path) -> None:
    """Random weights need no file, have the shape that is asked for, and repeat with the seed."""
    taken = [
        open_weights(
            tmp_path,
            load_format="dummy",
            dtype=torch.bfloat16,
            device=torch.device("cpu"),
            seed=seed,
        ).take("any", 8, 4)
        for seed in (1, 1, 2)
    ]
    assert (taken[0].shape, taken[0].dtype) == ((8, 4), torch.bfloat16)
    assert torch.equal(taken[0], taken[1])
    assert not torch.equal(taken[0], taken[2])


def test_a_pointer_of_git_lfs_is_no_truncated_file(tmp_path: Path) -> None:
    """What a clone without LFS has in place of weights is told by its name."""
    (tmp_path / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\n")
    with pytest.raises(ModelError, match=r"model\.safetensors: is a Git LFS pointer.*lfs pull"):
        opened(tmp_path)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("saved", [torch.float32, torch.bfloat16, torch.float16])
def test_what_is_no_number_is_refused(tmp_path: Path, bad: float, saved: torch.dtype) -> None:
    """One NaN or infinity among the weights is told with its tensor and file."""
    tensor = torch.zeros(3, 5, dtype=saved)
    tensor[1, 2] = bad
    save_file({"fine": torch.zeros(0), "w": tensor}, tmp_path / "model.safetensors")
    weights = opened(tmp_path)
    weights.take("fine", 0)
    with pytest.raises(ModelError, match=r"model\.safetensors: tensor w holds NaN or infinity"):
        weights.take("w", 3, 5)


def test_what_a_type_cannot_hold_is_refused(tmp_path: Path) -> None:
    """A weight that is a number as it was saved and none as it is served names the type."""
    save_file({"w": torch.tensor([1e30])}, tmp_path / "model.safetensors")
    assert opened(tmp_path, torch.bfloat16).take("w", 1).isfinite().all()
    with pytest.raises(ModelError, match="too large for float16"):
        opened(tmp_path, torch.float16).take("w", 1)
