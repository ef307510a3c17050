#!/usr/bin/env python3
"""Runs the committed programs with Python's torch, for tests/parity/python_graph_test.cc.

    run_graph.py TORCH OUT FOLDER...

TORCH is the folder of the torch that the engine was built with. Each FOLDER/program.pt2 is opened by torch.export.load
and runs one step with the weights of FOLDER/model.safetensors on FOLDER/inputs.safetensors. OUT/NAME.safetensors, NAME
being that of the FOLDER, gets the outputs by name and the gradients of the loss as grad.<parameter>.

Exit status 77: this Python cannot import that torch, or the torch is older than the one that wrote the archives. 1: a
program failed; the others ran.
"""

import ctypes
import importlib.util
import io
import json
import pathlib
import sys
import traceback
import warnings
import zipfile
from collections.abc import Mapping
from typing import Any

CANNOT = 77


def import_torch(folder: pathlib.Path) -> None:
    global torch
    found = importlib.util.find_spec("torch")
    if found is None or found.origin is None or pathlib.Path(found.origin).resolve().parent != folder.resolve():
        sys.exit(cannot(f"{sys.executable} does not import {folder}"))
    try:
        import torch
        import torch.export
    except (ImportError, OSError) as error:
        sys.exit(cannot(f"{sys.executable} cannot import {folder}: {error}"))


def cannot(reason: str) -> int:
    print(reason)
    return CANNOT


# --- safetensors ------------------------------------------------------------------------------------------------------
DTYPES = {"F64": "float64", "F32": "float32", "BF16": "bfloat16", "F16": "float16", "I64": "int64", "I32": "int32",
          "BOOL": "bool"}  # fmt: skip


def read_tensors(path: pathlib.Path) -> dict[str, Any]:
    """Each in memory of its own, aligned as torch aligns."""
    data = bytearray(path.read_bytes())
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    header.pop("__metadata__", None)
    found = {}
    for name, one in header.items():
        flat = torch.empty(0, dtype=getattr(torch, DTYPES[one["dtype"]]))
        start, stop = (8 + length + offset for offset in one["data_offsets"])
        if stop > start:
            flat = torch.frombuffer(data[start:stop], dtype=flat.dtype)
        found[name] = flat.reshape(one["shape"]).clone()
    return found


def write_tensors(path: pathlib.Path, tensors: Mapping[str, Any]) -> None:
    header, data = {}, b""
    names = {f"torch.{dtype}": name for name, dtype in DTYPES.items()}
    for name, tensor in tensors.items():
        own = bytes_of(tensor)
        header[name] = {"dtype": names[str(tensor.dtype)], "shape": list(tensor.shape),
                        "data_offsets": [len(data), len(data) + len(own)]}  # fmt: skip
        data += own
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def bytes_of(tensor: Any) -> bytes:
    tensor = tensor.detach().contiguous()
    return ctypes.string_at(tensor.data_ptr(), tensor.numel() * tensor.element_size())


# --- Weights ----------------------------------------------------------------------------------------------------------
def sources(recipe: Mapping[str, Any]) -> list[str]:
    """The names of checkpoint tensors in a recipe (engine/models/program/export/README.md, Weights)."""
    if "tensor" in recipe:
        return [recipe["tensor"]]
    return [name for part in parts(recipe) for name in sources(part)]


def parts(recipe: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    if "stack" in recipe and isinstance(recipe["stack"], str):
        return [{"tensor": recipe["stack"].replace("{}", str(i))} for i in range(recipe["count"])]
    kind = next(kind for kind in ("stack", "concatenate", "slice", "select", "permute", "reshape") if kind in recipe)
    return recipe[kind] if isinstance(recipe[kind], list) else [recipe[kind]]


def follow(recipe: Mapping[str, Any], stored: Mapping[str, Any]) -> Any:
    if "tensor" in recipe:
        return stored[recipe["tensor"]]
    made = [follow(part, stored) for part in parts(recipe)]
    if "stack" in recipe:
        return torch.stack(made, recipe["dim"])
    if "concatenate" in recipe:
        return torch.cat(made, recipe["dim"])
    if "slice" in recipe:
        return made[0].narrow(recipe["dim"], recipe["start"], recipe["stop"] - recipe["start"])
    if "select" in recipe:
        return made[0].select(recipe["dim"], recipe["index"])
    if "permute" in recipe:
        return made[0].permute(recipe["dims"])
    return made[0].reshape(recipe["shape"])


def weight(name: str, description: Mapping[str, Any], stored: Mapping[str, Any]) -> Any:
    """The tensor of that name, or the one that it is tied to: the checkpoint's own, or made by a recipe of others."""
    names = next((group for group in description["ties"] if name in group), [name])
    recipes = [recipe for one in names for recipe in description["weights"]["tensors"].get(one, [])]
    for recipe in [*recipes, *({"tensor": one} for one in names)]:
        if all(source in stored for source in sources(recipe)):
            dtype = getattr(torch, description["tensors"][name]["dtype"])
            return follow(recipe, stored).to(dtype).contiguous()
    raise ValueError(f"the checkpoint has no tensor for {name}")


def with_weights(archive: Mapping[str, bytes], description: Mapping[str, Any], stored: Mapping[str, Any]) -> io.BytesIO:
    """The archive with a record of values for each tensor that it has only the shape of."""
    at = next(name for name in archive if name.endswith("data/weights/model_weights_config.json"))
    config = json.loads(archive[at])
    records = {name: data for name, data in archive.items() if "/data/weights/" not in name}
    for number, (name, one) in enumerate(config["config"].items()):
        value = weight(name, description, stored)
        sizes = [size["as_int"] for size in one["tensor_meta"]["sizes"]]
        strides = [stride["as_int"] for stride in one["tensor_meta"]["strides"]]
        if list(value.shape) != sizes or list(value.stride()) != strides:
            raise ValueError(f"{name}: {list(value.shape)} in the checkpoint, {sizes} by {strides} in the archive")
        one["path_name"] = f"weight_{number}"
        records[str(pathlib.PurePosixPath(at).with_name(one["path_name"]))] = bytes_of(value)
    records[at] = json.dumps(config).encode()
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as out:
        for name, data in records.items():
            out.writestr(name, data)
    made.seek(0)
    return made


# --- A step -----------------------------------------------------------------------------------------------------------
def run(folder: pathlib.Path) -> dict[str, Any]:
    """Outputs and gradients of one step."""
    with zipfile.ZipFile(folder / "program.pt2") as opened:
        archive = {name: opened.read(name) for name in opened.namelist()}
    description = json.loads(next(data for name, data in archive.items() if name.endswith("/extra/moonshard.json")))
    wrote = description["exporter"]["torch"]
    if release(torch.__version__) < release(wrote):
        sys.exit(cannot(f"torch {torch.__version__} is older than {wrote}, which wrote {folder / 'program.pt2'}"))
    made = with_weights(archive, description, read_tensors(folder / "model.safetensors"))
    graph = torch.export.load(made).module(check_guards=False)  # which hold is for moonshard.json to say
    for tensor in [*graph.parameters(), *graph.buffers()]:
        tensor.data = tensor.data.clone()  # aligned as torch aligns, which kernels may depend on

    torch.manual_seed(0)
    results = graph(**read_tensors(folder / "inputs.safetensors"))
    outputs = {one["name"]: result for one, result in zip(description["outputs"], results, strict=True)}
    outputs["loss"].backward()
    gradients = {f"grad.{name}": p.grad for name, p in graph.named_parameters() if p.grad is not None}
    return {**outputs, **gradients}


def release(version: str) -> list[int]:
    return [int(number) for number in version.split("+")[0].split(".")[:2]]


def main() -> int:
    out, folders = pathlib.Path(sys.argv[2]), [pathlib.Path(one) for one in sys.argv[3:]]
    failed = 0
    for folder in folders:
        try:
            write_tensors(out / f"{folder.name}.safetensors", run(folder))
        except Exception:  # noqa: BLE001
            failed = 1
            print(f"{folder}:\n{traceback.format_exc()}", file=sys.stderr)
    return failed


if __name__ == "__main__":
    warnings.simplefilter("ignore")  # that there is no numpy
    import_torch(pathlib.Path(sys.argv[1]))
    torch.set_num_threads(1)  # as the C++ side: kernels split their work by the number of threads
    sys.exit(main())
