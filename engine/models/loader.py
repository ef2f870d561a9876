"""Give a model its weights: from safetensors files, or random ones in the same shapes.

A model asks for each tensor by name and expected shape, so that every check (present, right
shape, right kind of number) happens in one place and its message names the file. Pickle is never
read: a file of that kind could run code. Shards must lie in the model's own directory.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any, NoReturn, Protocol

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from engine.errors import ModelError
from engine.model_dir import refuse_lfs_pointer
from engine.model_file import check_model_file, read_model_file

_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_PICKLED = ("pytorch_model.bin", "pytorch_model.bin.index.json", "consolidated.00.pth")
# Old checkpoints saved the frequencies of rotary positions, which config.json gives.
_COMPUTED = ".rotary_emb.inv_freq"
_FIRST, _FIRST_INNER = "model.embed_tokens.weight", "embed_tokens.weight"
_NUMBERS = (torch.float32, torch.bfloat16, torch.float16)


class WeightSource(Protocol):
    """Hand out weights in the engine's dtype, on its device."""

    def take(self, name: str, *shape: int) -> Tensor:
        """Return the tensor `name`. Raises: `ModelError`: missing, or not of this shape."""
        ...

    def refuse_rest_of(self, prefix: str) -> None:
        """Raise `ModelError` for a tensor below `prefix` that nobody took.

        A model that has more weights than its config.json lets on would answer nonsense.
        """
        ...


def open_weights(
    model_dir: Path, *, load_format: str, dtype: torch.dtype, device: torch.device, seed: int
) -> WeightSource:
    """Find the weights of `model_dir`; `load_format` is `auto` or `dummy` (random, by `seed`).

    Raises: `ModelError`: no safetensors there, or the files are malformed.
    """
    if load_format == "dummy":
        return DummyWeights(dtype=dtype, device=device, seed=seed)
    return SafetensorsWeights(_locate(model_dir), model_dir, dtype=dtype, device=device)


class SafetensorsWeights:
    """Read tensors lazily from one or many safetensors files."""

    def __init__(
        self,
        paths: Mapping[str, Path],
        model_dir: Path,
        *,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self._paths = paths
        self._model_dir = model_dir
        self._dtype = dtype
        self._device = device
        # Any: safetensors ships no types for the handle.
        self._files: dict[Path, Any] = {}
        self._taken: set[str] = set()
        # A model that was saved without its head names its weights from within.
        self._outer = "" if _FIRST in paths or _FIRST_INNER not in paths else "model."

    def take(self, name: str, *shape: int) -> Tensor:
        name = name.removeprefix(self._outer)
        self._taken.add(name)
        path = self._paths.get(name)
        if path is None:
            raise ModelError(
                f"{self._model_dir}: tensor {name} is in none of its safetensors files; "
                "fetch the model again"
            )
        tensor = self._read(path, name)
        if tuple(tensor.shape) != shape:
            raise ModelError(
                f"{path}: tensor {name} has shape {list(tensor.shape)}, "
                f"config.json asks for {list(shape)}; fetch both files from the same model"
            )
        if tensor.dtype not in _NUMBERS:
            raise ModelError(
                f"{path}: tensor {name} is {str(tensor.dtype).removeprefix('torch.')}; "
                "convert the model to float32, bfloat16 or float16"
            )
        # A copy, because the tensor maps the file, and a file replaced later must not matter.
        taken = tensor.to(device=self._device, dtype=self._dtype, copy=True)
        if not _is_finite(taken):
            self._refuse_infinite(path, name, tensor)
        return taken

    def refuse_rest_of(self, prefix: str) -> None:
        prefix = prefix.removeprefix(self._outer)
        for name in sorted(self._paths.keys() - self._taken):
            if name.startswith(prefix) and not name.endswith(_COMPUTED):
                raise ModelError(
                    f"{self._paths[name]}: tensor {name} is in no model that config.json "
                    "describes; fetch both files from the same model"
                )

    def _refuse_infinite(self, path: Path, name: str, tensor: Tensor) -> NoReturn:
        if _is_finite(tensor):
            raise ModelError(
                f"{path}: tensor {name} has numbers that are too large for "
                f"{str(self._dtype).removeprefix('torch.')}; choose dtype float32 or bfloat16"
            )
        raise ModelError(
            f"{path}: tensor {name} holds NaN or infinity, with which no token can be computed; "
            "fetch the file again, or repair what wrote it"
        )

    def _read(self, path: Path, name: str) -> Tensor:
        try:
            tensor: Tensor = self._file(path).get_tensor(name)
        except (SafetensorError, OSError) as error:
            raise ModelError(
                f"{path}: tensor {name} cannot be read ({_one_line(error)}); fetch the file again"
            ) from error
        return tensor

    # Any: see `_files`.
    def _file(self, path: Path) -> Any:
        if path not in self._files:
            self._files[path] = _open(path)
        return self._files[path]


class DummyWeights:
    """Make seeded random weights, so that a config.json alone can be load-tested."""

    def __init__(self, *, dtype: torch.dtype, device: torch.device, seed: int) -> None:
        self._dtype = dtype
        self._device = device
        # Made where they are used: a CPU takes a minute for what a GPU makes in a second.
        self._generator = torch.Generator(device).manual_seed(seed)

    def take(self, name: str, *shape: int) -> Tensor:
        if len(shape) == 1:
            value = 0.0 if name.endswith(".bias") else 1.0
            return torch.full(shape, value, dtype=self._dtype, device=self._device)
        # Scaled by fan-in, so that activations and logits keep a natural size at any width.
        weights = torch.randn(shape, generator=self._generator, device=self._device)
        return weights.div_(math.sqrt(shape[-1])).to(self._dtype)

    def refuse_rest_of(self, prefix: str) -> None:
        pass  # What is asked for is made; there is no rest.


def _locate(model_dir: Path) -> dict[str, Path]:
    """Map each tensor's name to the file that holds it."""
    index = model_dir / _INDEX
    if index.exists():
        return _read_index(index)
    single = model_dir / _SINGLE
    if single.exists():
        return dict.fromkeys(_open(single).keys(), single)
    for name in _PICKLED:
        if (model_dir / name).exists():
            raise ModelError(
                f"{model_dir / name}: pickled weights are never loaded; "
                "convert the model to safetensors (save_pretrained of transformers does)"
            )
    raise ModelError(
        f"{model_dir}: holds neither {_SINGLE} nor {_INDEX}; fetch the weights, or serve "
        "random ones with --load-format dummy"
    )


def _read_index(path: Path) -> dict[str, Path]:
    try:
        raw = json.loads(read_model_file(path))
    except OSError as error:
        raise ModelError(f"{path}: cannot be read ({error.strerror}); mend it") from error
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path}: is not valid JSON; fetch the file again") from error
    weight_map = raw.get("weight_map") if isinstance(raw, dict) else None
    if not isinstance(weight_map, dict):
        raise ModelError(f"{path}: has no weight_map object; fetch the file again")
    return {name: _shard_path(path, shard) for name, shard in weight_map.items()}


def _shard_path(index: Path, shard: object) -> Path:
    # Judged by its text: a link inside the directory may point anywhere, as in a Hugging Face
    # cache, because only whoever owns the directory can make one.
    name = PurePosixPath(shard) if isinstance(shard, str) and "\0" not in shard else None
    if name is None or name.is_absolute() or ".." in name.parts or "\\" in str(name):
        raise ModelError(
            f"{index}: shard {json.dumps(shard)[:80]} lies outside the model's directory; "
            "name files beside the index only"
        )
    if name.suffix != ".safetensors":
        raise ModelError(
            f"{index}: shard {json.dumps(shard)[:80]} is not a safetensors file; "
            "convert the model to safetensors"
        )
    return index.parent / name


def _is_finite(tensor: Tensor) -> bool:
    # Both ends are NaN where one number is; it takes half the time of the copy, isfinite six times.
    return tensor.numel() == 0 or bool(torch.isfinite(torch.stack(torch.aminmax(tensor))).all())


# Any: safetensors ships no types for the handle.
def _open(path: Path) -> Any:
    refuse_lfs_pointer(path)
    try:
        check_model_file(path)
        return safe_open(path, framework="pt", device="cpu")
    except FileNotFoundError:
        raise ModelError(f"{path}: no such file; fetch the missing shard") from None
    except (SafetensorError, OSError) as error:
        raise ModelError(
            f"{path}: is truncated or not a safetensors file ({_one_line(error)}); "
            "fetch the file again"
        ) from error


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
