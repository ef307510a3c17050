"""The recipes (README.md) by which each tensor of a Hugging Face model is made from tensors of a checkpoint.

transformers renames tensors and converts them (stacks experts, fuses projections) while it loads a checkpoint. This
file runs these conversions on meta tensors, and derives the recipes from the operators that they call.
"""

import json
import pathlib
import re
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import core_model_loading as loading
from transformers.conversion_mapping import get_model_conversion_mapping

from tracing import dtype_name

Recipe = dict[str, Any]
aten = torch.ops.aten


class Unsupported(Exception):
    """A conversion that no recipe of README.md can express."""


def conversions(model: torch.nn.Module, folder: pathlib.Path | None) -> tuple[dict[str, Any], list[str]]:
    """The `weights` of README.md for a model of transformers, and notes on tensors that only the model or only the
    checkpoint has; the checkpoint, if there is one, is in `folder`."""
    shapes = _checkpoint(folder)
    source = "checkpoint" if shapes else "config"
    own = {name: torch.empty_like(tensor, device="meta") for name, tensor in model.state_dict().items()}
    if not shapes:
        with torch.no_grad():
            saved = loading.revert_weight_conversion(model, dict(own))
        shapes = {name: (list(tensor.shape), tensor.dtype) for name, tensor in saved.items()}
    made, unused, unsupported = _convert(model, own, shapes)
    tied = {name for names in _tied(model) if any(one in made for one in names) for name in names}
    missing = [n for n in own if n not in made and n not in tied and n not in unsupported]
    notes = [f"{text}: {_listed(names)}" for text, names in (
        ("The checkpoint does not have tensors of the model", missing),
        ("The model does not use tensors of the checkpoint", unused)) if names and source == "checkpoint"]  # fmt: skip
    tensors = {name: [_short(recipe)] for name, recipe in made.items() if recipe != {"tensor": name}}
    return {"source": source, "tensors": tensors, "unsupported": unsupported}, notes


def _listed(names: list[str]) -> str:
    most = 10
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _tied(model: torch.nn.Module) -> list[list[str]]:
    groups: dict[int, list[str]] = {}
    for name, tensor in model.named_parameters(remove_duplicate=False):
        groups.setdefault(id(tensor), []).append(name)
    return list(groups.values())


def _checkpoint(folder: pathlib.Path | None) -> dict[str, tuple[list[int], torch.dtype]]:
    """The shape and dtype of each tensor in the safetensors files of a directory."""
    if folder is None:
        return {}
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        files = sorted(set(json.loads(index.read_text())["weight_map"].values()))
    else:
        files = ["model.safetensors"] if (folder / "model.safetensors").is_file() else []
    found = {}
    for file in files:
        with (folder / file).open("rb") as stream:
            header = json.loads(stream.read(int.from_bytes(stream.read(8), "little")))
        header.pop("__metadata__", None)
        found.update({name: (one["shape"], _TYPES.get(one["dtype"], torch.uint8)) for name, one in header.items()})
    return found


_TYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64,
          "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
          "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2}  # fmt: skip


_FLOATING = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


def _convert(model, own: dict[str, torch.Tensor], shapes: dict) -> tuple[dict[str, Recipe], list[str], dict[str, Any]]:
    """transformers' convert_and_load_state_dict_in_model on tensors without values."""
    transforms = get_model_conversion_mapping(model)
    renamings = [one for one in transforms if isinstance(one, loading.WeightRenaming)]
    converters = [one for one in transforms if isinstance(one, loading.WeightConverter)]
    by_pattern = {pattern: one for one in converters for pattern in one.source_patterns}
    prefix, recorder = model.base_model_prefix, _Recorder()
    pending: dict[str, Any] = {}
    unused: list[str] = []
    unsupported: dict[str, dict[str, Any]] = {}
    sources: dict[str, list[str]] = {}
    for original in sorted(shapes, key=loading.dot_natural_key):
        name, pattern = loading.rename_source_key(original, renamings, converters, prefix, own)
        if name not in own and original in own:
            name, pattern = loading.rename_source_key(original, [], [], prefix, own)
        if name not in own:
            unused.append(original)
            continue
        if name not in pending:
            transform = loading.deepcopy(by_pattern[pattern]) if pattern else loading.WeightRenaming(original, name)
            pending[name] = transform
        transform = pending[name]
        shape, dtype = shapes[original]
        if own[name].is_floating_point() and dtype not in _FLOATING:
            unsupported[name] = {"reason": f"{original} is quantized ({dtype_name(dtype)})"}
        sources.setdefault(name, []).append(original)
        tensor = torch.empty(shape, dtype=dtype, device="meta")
        recorder.recipes[id(tensor)] = ({"tensor": original}, tensor)
        transform.add_tensor(name, original, pattern or original, lambda tensor=tensor: tensor)
    made: dict[str, Recipe] = {}
    for name, transform in pending.items():
        if name in unsupported:
            continue
        try:
            with recorder, torch.no_grad():
                result = transform.convert(name, model=model, config=model.config, loading_info=_NoInfo())
            for target, tensor in result.items():
                tensor = tensor[0] if isinstance(tensor, list) else tensor
                if target in own and list(tensor.shape) != list(own[target].shape):
                    raise Unsupported(f"the result has shape {list(tensor.shape)}, not {list(own[target].shape)}")
                made[target] = recorder.recipe_of(tensor)
        except Exception as error:
            operations = ", ".join(type(one).__name__ for one in getattr(transform, "operations", ()))
            unsupported[name] = {"reason": f"{operations or 'renaming'}: {str(error).strip() or type(error).__name__}"}
    for name, one in unsupported.items():
        one["sources"] = sources[name]
    return made, unused, unsupported


class _NoInfo:
    """Replaces the object in which transformers collects errors; raises the error instead."""

    missing_keys = frozenset()

    @property
    def conversion_errors(self):
        raise Unsupported("the conversion failed")


class _Recorder(TorchDispatchMode):
    """Records for each tensor the recipe by which it is made from tensors of the checkpoint."""

    def __init__(self) -> None:
        super().__init__()
        self.recipes: dict[int, tuple[Recipe, torch.Tensor]] = {}  # the tensor keeps its id from being reused

    def recipe_of(self, tensor: torch.Tensor) -> Recipe:
        if id(tensor) not in self.recipes:
            raise Unsupported("a tensor that is not made from tensors of the checkpoint")
        return self.recipes[id(tensor)][0]

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        result = operator(*args, **(kwargs or {}))
        handler = _HANDLERS.get(operator.overloadpacket)
        if handler is None:
            raise Unsupported(str(operator))
        results = list(result) if isinstance(result, (tuple, list)) else [result]
        named = {formal.name: value for formal, value in zip(operator._schema.arguments, args)} | dict(kwargs or {})
        for index, one in enumerate(results):
            self.recipes[id(one)] = (_simplified(handler(self, named, one, index)), one)
        return result


def _same(recorder: _Recorder, named: dict, _result: torch.Tensor, _index: int) -> Recipe:
    return recorder.recipe_of(named["self"])


def _reshaped(recorder: _Recorder, named: dict, result: torch.Tensor, _index: int) -> Recipe:
    return {"reshape": recorder.recipe_of(named["self"]), "shape": list(result.shape)}


def _joined(word: str) -> Callable[..., Recipe]:
    def handler(recorder: _Recorder, named: dict, _result: torch.Tensor, _index: int) -> Recipe:
        tensors = named["tensors"]
        dim = named.get("dim", 0) % (tensors[0].dim() + (word == "stack"))
        return {word: [recorder.recipe_of(one) for one in tensors], "dim": dim}

    return handler


def _piece(recorder: _Recorder, named: dict, result: torch.Tensor, index: int) -> Recipe:
    dim = named.get("dim", 0) % named["self"].dim()
    sizes = named.get("split_sizes") or named["split_size"]
    start = sum(sizes[:index]) if isinstance(sizes, (list, tuple)) else sizes * index
    return _slice(recorder, named["self"], dim, start, start + result.shape[dim])


def _slice(recorder: _Recorder, tensor: torch.Tensor, dim: int, start: int, stop: int) -> Recipe:
    if (start, stop) == (0, tensor.shape[dim]):
        return recorder.recipe_of(tensor)
    return {"slice": recorder.recipe_of(tensor), "dim": dim, "start": start, "stop": stop}


def _sliced(recorder: _Recorder, named: dict, result: torch.Tensor, _index: int) -> Recipe:
    if named.get("step", 1) != 1:
        raise Unsupported("a slice with a step")
    tensor, dim = named["self"], named.get("dim", 0) % named["self"].dim()
    start = min(
        max(0, (named.get("start") or 0) + tensor.shape[dim] * ((named.get("start") or 0) < 0)), tensor.shape[dim]
    )
    return _slice(recorder, tensor, dim, start, start + result.shape[dim])


def _selected(recorder: _Recorder, named: dict, _result: torch.Tensor, _index: int) -> Recipe:
    tensor, dim = named["self"], named["dim"] % named["self"].dim()
    return {"select": recorder.recipe_of(tensor), "dim": dim, "index": named["index"] % tensor.shape[dim]}


def _permuted(recorder: _Recorder, named: dict, result: torch.Tensor, _index: int) -> Recipe:
    dims = list(range(result.dim()))
    if "dims" in named:
        dims = [dim % len(dims) for dim in named["dims"]]
    else:
        a, b = named.get("dim0", 0) % len(dims), named.get("dim1", 1) % len(dims)
        dims[a], dims[b] = dims[b], dims[a]
    return {"permute": recorder.recipe_of(named["self"]), "dims": dims}


_HANDLERS: dict[Any, Callable[..., Recipe]] = {
    aten.stack: _joined("stack"), aten.cat: _joined("concatenate"),
    aten.split: _piece, aten.split_with_sizes: _piece, aten.slice: _sliced, aten.select: _selected,
    aten.transpose: _permuted, aten.t: _permuted, aten.permute: _permuted,
    aten.view: _reshaped, aten._unsafe_view: _reshaped, aten.reshape: _reshaped, aten._reshape_alias: _reshaped,
    aten.squeeze: _reshaped, aten.unsqueeze: _reshaped, aten.unflatten: _reshaped, aten.flatten: _reshaped,
    aten.clone: _same, aten.contiguous: _same, aten._to_copy: _same, aten.detach: _same, aten.alias: _same,
}  # fmt: skip


def _simplified(recipe: Recipe) -> Recipe:
    """Merges a reshape of a reshape into one reshape."""
    if "reshape" in recipe and "reshape" in recipe["reshape"]:
        return {**recipe, "reshape": recipe["reshape"]["reshape"]}
    return recipe


def _short(recipe: Recipe) -> Recipe:
    """Writes a stack of tensors that are numbered from 0 as one name with `{}` and a count."""
    recipe = {key: _short(value) if isinstance(value, dict) else value for key, value in recipe.items()}
    for word in ("stack", "concatenate"):
        if isinstance(recipe.get(word), list):
            recipe[word] = [_short(one) for one in recipe[word]]
    parts = recipe.get("stack", ())
    if len(parts) > 1 and all(set(part) == {"tensor"} for part in parts):
        first = parts[0]["tensor"]
        for match in re.finditer(r"(?<![0-9])0(?![0-9])", first):
            pattern = first[: match.start()] + "{}" + first[match.end() :]
            if all(part["tensor"] == pattern.replace("{}", str(i)) for i, part in enumerate(parts)):
                return {"stack": pattern, "count": len(parts), "dim": recipe["dim"]}
    return recipe
