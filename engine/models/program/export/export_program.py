#!/usr/bin/env python3
"""Writes a PyTorch model as a program that moonshard's C++ engine runs, trains and shards by a plan.

    export_program.py MODEL OUT.pt2 [options]      MODEL: a directory with a Hugging Face config.json
    export_program.py MODEL OUT --lengths 64 256   a directory of programs, for models that hold for a range of lengths

    from export_program import export              for a module of one's own

Weights are neither needed nor written: parameters have a shape and no values, so a model of any size is exported on a
laptop. README.md beside this file is the format.
"""

import argparse
import dataclasses
import inspect
import json
import pathlib
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import torch

sys.path.insert(0, str(pathlib.Path(__file__).parent))

from expressions import symbols_in, to_json, to_python  # noqa: E402
from torch.export.graph_signature import InputKind  # noqa: E402
from tracing import Trace, dtype_name, input_names, shape_of, trace  # noqa: E402

FORMAT = 1
LONGEST = 4096  # up to which size of an input's dim `valid` is worked out


@dataclasses.dataclass
class Exported:
    """What `export` made: the program of torch.export and the description that stands beside it in the archive."""

    program: torch.export.ExportedProgram
    description: dict[str, Any]

    def save(self, path: str | pathlib.Path) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.export.save(self.program, path, extra_files={"moonshard.json": json.dumps(self.description)})


def export(
    module: torch.nn.Module,
    args: tuple = (),
    kwargs: Mapping[str, Any] | None = None,
    out: str | pathlib.Path | None = None,
    *,
    dynamic_shapes: Mapping[str, Any] | None = None,
    shardable: Mapping[str, set[int]] | bool = True,
    train: bool = True,
    weights: bool = False,
    constants: Mapping[str, Any] | None = None,
    kinds: Callable[[str], str] = lambda name: "other",
    extra: Mapping[str, Any] | None = None,
) -> Exported:
    """Exports `module(*args, **kwargs)` and, with `out`, writes the archive.

    dynamic_shapes   as torch.export has it, by argument name; default: the first two dims of each tensor vary
    shardable        dims of parameters that plans may shard, by name; True: as `shardable_dims` finds them; False: none.
                     Where tracing with them fails, fewer are tried, down to none, and a note says so
    train            the mode that is traced: dropout and the like are in the graph
    weights          whether the archive holds the values of parameters and buffers
    constants        further arguments that are no inputs of the program: flags, numbers
    kinds, extra     for the description: the kind of an input, and keys that replace those made here
    """
    signature = inspect.signature(module.forward)
    inputs = dict(signature.bind_partial(*args, **(kwargs or {})).arguments)
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            inputs.update(inputs.pop(parameter.name, {}))
    fixed = {**(constants or {}), **{name: value for name, value in inputs.items() if not _has_tensors(value)}}
    inputs = {name: value for name, value in inputs.items() if name not in fixed}
    if dynamic_shapes is None:
        dynamic_shapes = torch.utils._pytree.tree_map(_first_two_dims, inputs)
    module.train(train)
    if not weights:
        from hugging_face import fake_tensors

        fake_tensors(module)
    notes: list[str] = []
    traced = _trace_with_fewer_dims(module, inputs, fixed, dynamic_shapes, shardable, notes)
    description = {**_describe(module, traced, inputs, kinds, notes), **(extra or {})}
    description["options"] = {"train": train, "weights": weights, **description.get("options", {}),
                              "example": _example(inputs)}  # fmt: skip
    result = Exported(traced.program, description)
    if out is not None:
        result.save(out)
    return result


def shardable_dims(module: torch.nn.Module) -> dict[str, set[int]]:
    """Dims of parameters that a colwise, rowwise or vocabulary plan may shard, by parameter.

    All dims of weights, the vocabulary of embeddings, and stacked experts but for their number. Tracing makes an integer
    again of each dim that turns out to be fixed, such as the width of the residual stream.
    """
    found: dict[str, set[int]] = {}
    embeddings = {id(p) for m in module.modules() if isinstance(m, torch.nn.Embedding) for p in m.parameters()}
    for name, parameter in module.named_parameters():
        owner = module.get_submodule(name.rpartition(".")[0])
        if id(parameter) in embeddings:
            found[name] = {0}
        elif isinstance(owner, torch.nn.modules.conv._ConvNd):
            continue
        elif parameter.dim() == 3 or (parameter.dim() == 2 and "expert" in name and type(owner).__name__ != "Linear"):
            found[name] = set(range(1, parameter.dim()))
        elif 1 <= parameter.dim() <= 2:
            found[name] = set(range(parameter.dim()))
    return {name: {d for d in dims if module.get_parameter(name).shape[d] > 1} for name, dims in found.items()}


def _has_tensors(value: Any) -> bool:
    return any(isinstance(leaf, torch.Tensor) for leaf in torch.utils._pytree.tree_leaves(value))


def _first_two_dims(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return None
    return {dim: torch.export.Dim.AUTO for dim in range(min(2, value.dim()))}


def _example(inputs: Mapping[str, Any]) -> dict[str, list[int]]:
    leaves = torch.utils._pytree.tree_leaves(dict(inputs))
    return {name: list(leaf.shape) for name, leaf in zip(input_names(dict(inputs)), leaves) if hasattr(leaf, "shape")}


def _trace_with_fewer_dims(module, inputs, fixed, dynamic_shapes, shardable, notes: list[str]) -> Trace:
    """Traces with all dims that may be sharded, then without those of norms and the like, then without any."""
    if shardable is False:
        tries = [{}]
    elif shardable is True:
        dims = shardable_dims(module)
        matrices = {name: found for name, found in dims.items() if module.get_parameter(name).dim() > 1
                    or name.endswith("bias")}  # fmt: skip
        tries = [dims, matrices, {}]
    else:
        tries = [{name: set(found) for name, found in shardable.items()}, {}]
    for cut in tries:
        try:
            return trace(module, inputs, dynamic_shapes, cut, fixed)
        except Exception as error:
            if not cut:
                raise
            first = str(error).strip().splitlines() or [type(error).__name__]
            notes.append(f"Tracing with {sum(map(len, cut.values()))} symbolic dims of parameters failed: {first[0]}")
    raise AssertionError("one trace has no symbolic dims of parameters")


# --- The description --------------------------------------------------------------------------------------------------
def _describe(module, traced: Trace, inputs: Mapping[str, Any], kinds: Callable[[str], str], notes: list[str]) -> dict:
    tensors, ties = _tensors(module, traced)
    guards = traced.guards
    fixed = [name for name, one in tensors.items() if one["kind"] == "parameter" and "symbolic" not in one]
    if fixed and len(fixed) < len(tensors):
        notes.append(f"{len(fixed)} parameters have no symbolic dim")
    elif fixed:
        notes.append("No parameter has a symbolic dim: sizes in the graph do not follow shards")
    custom = sorted({name for name in _operators(traced) if not name.startswith(("aten::", "higher_order::", "number::"))})
    if custom:
        notes.append("Operators that are not PyTorch's own: " + ", ".join(custom))
    return {
        "format": FORMAT,
        "exporter": {"torch": torch.__version__.partition("+")[0], "transformers": None},
        "model": {"class": type(module).__name__, "defined_in": type(module).__module__, "type": None, "config": None},
        "options": {},
        "inputs": _inputs(traced, inputs, kinds),
        "outputs": _outputs(traced),
        "symbols": traced.symbols,
        "guards": guards,
        "valid": _valid(traced),
        "modules": [{"path": path, "class": type(one).__name__, "defined_in": type(one).__module__}
                    for path, one in module.named_modules()],
        "tensors": tensors,
        "ties": ties,
        "calls": traced.calls,
        "weights": {"source": "module", "files": [], "tensors": {}, "unused": [], "missing": [], "unsupported": {}},
        "operators": _operators(traced),
        "notes": notes,
    }  # fmt: skip


def _value(name: str, node: Any, value: Any) -> dict[str, Any]:
    if isinstance(value, torch.Tensor):
        return {"name": name, "value": node, "dtype": dtype_name(value.dtype), "shape": shape_of(value)}
    kind = {torch.SymInt: "int", torch.SymFloat: "float", torch.SymBool: "bool"}.get(type(value), type(value).__name__)
    return {"name": name, "value": node, "dtype": kind, "size": to_json(value)}


def _inputs(traced: Trace, inputs: Mapping[str, Any], kinds: Callable[[str], str]) -> list[dict[str, Any]]:
    nodes = {node.name: node for node in traced.program.graph.nodes if node.op == "placeholder"}
    specs = [spec for spec in traced.program.graph_signature.input_specs if spec.kind == InputKind.USER_INPUT]
    return [{**_value(name, spec.arg.name, nodes[spec.arg.name].meta["val"]), "kind": kinds(name)}
            for spec, name in zip(specs, input_names(dict(inputs))) if spec.arg.name in nodes]  # fmt: skip


def _outputs(traced: Trace) -> list[dict[str, Any]]:
    results = traced.program.graph.output_node().args[0]
    return [_value(name, getattr(node, "name", None), node.meta["val"] if hasattr(node, "meta") else node)
            for name, node in zip(traced.outputs, results)]  # fmt: skip


def _tensors(module: torch.nn.Module, traced: Trace) -> tuple[dict[str, dict[str, Any]], list[list[str]]]:
    nodes = {node.name: node for node in traced.program.graph.nodes if node.op == "placeholder"}
    specs = {spec.target: spec for spec in traced.program.graph_signature.input_specs if spec.target is not None}
    mutated = set(traced.program.graph_signature.buffers_to_mutate.values()) | _written(traced)
    tensors: dict[str, dict[str, Any]] = {}
    groups: dict[int, list[str]] = {}
    for kind, named in (("parameter", module.named_parameters), ("buffer", module.named_buffers)):
        for name, tensor in named(remove_duplicate=False):
            spec = specs.get(name)
            value = nodes[spec.arg.name].meta["val"] if spec else tensor
            one = {"kind": kind, "shape": list(tensor.shape), "dtype": dtype_name(tensor.dtype),
                   "value": spec and spec.arg.name}  # fmt: skip
            if any(isinstance(size, torch.SymInt) for size in value.shape):
                one["symbolic"] = shape_of(value)
            if kind == "parameter":
                one["requires_grad"] = tensor.requires_grad
            else:
                path, _, leaf = name.rpartition(".")
                one["persistent"] = leaf not in module.get_submodule(path)._non_persistent_buffers_set
            if name in mutated:
                one["mutated"] = True
            tensors[name] = one
            groups.setdefault(id(tensor), []).append(name)
    ties = [sorted(names, key=lambda name: tensors[name]["value"] is None) for names in groups.values() if len(names) > 1]
    for names in ties:
        for name in names[1:]:
            for key in ("symbolic",):
                if key in tensors[names[0]]:
                    tensors[name][key] = tensors[names[0]][key]
    return tensors, ties


def _written(traced: Trace) -> set[str]:
    """Tensors that an operator of the graph writes in place."""
    targets = {spec.arg.name: spec.target for spec in traced.program.graph_signature.input_specs if spec.target}
    found = set()
    for node in traced.program.graph.nodes:
        if isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable:
            for argument, formal in zip(node.args, node.target._schema.arguments):
                if formal.is_write and getattr(argument, "name", None) in targets:
                    found.add(targets[argument.name])
    return found


def _operators(traced: Trace) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for graph_module in traced.program.graph_module.modules():
        for node in getattr(graph_module, "graph", torch.fx.Graph()).nodes:
            if node.op != "call_function":
                continue
            if isinstance(node.target, torch._ops.OpOverload):
                counts[node.target._schema.name] += 1
            elif isinstance(node.target, torch._ops.HigherOrderOperator):
                counts[f"higher_order::{node.target.name()}"] += 1
            else:
                counts[f"number::{node.target.__name__}"] += 1
    return dict(sorted(counts.items()))


def _valid(traced: Trace) -> dict[str, dict[str, Any]]:
    """For each symbol of an input, the sizes that hold while all others are as in the example."""
    example = {name: one["example"] for name, one in traced.symbols.items() if "example" in one}
    found = {}
    for name, one in traced.symbols.items():
        if "input" not in one:
            continue
        conditions = [g["condition"] for g in traced.guards if name in symbols_in(g["condition"])
                      and symbols_in(g["condition"]) <= set(example)]  # fmt: skip
        source = " and ".join(map(to_python, conditions)) or "True"
        others = ", ".join(f"{key}={value}" for key, value in example.items() if key != name)
        holds = eval(f"lambda {name}{', ' if others else ''}{others}: {source}")  # noqa: S307: made by to_python
        found[name] = {"input": one["input"], "dim": one["dim"], "ranges": _ranges(holds), "tried": LONGEST}
    return found


def _ranges(holds: Callable[[int], bool]) -> list[list[int]]:
    ranges: list[list[int]] = []
    for size in range(1, LONGEST + 1):
        try:
            if not holds(size):
                continue
        except ZeroDivisionError:
            continue
        if ranges and ranges[-1][1] == size - 1:
            ranges[-1][1] = size
        else:
            ranges.append([size, size])
    return ranges


# --- Hugging Face models ----------------------------------------------------------------------------------------------
@dataclasses.dataclass
class Options:
    """How a Hugging Face model is exported; None leaves the choice to transformers or to the model."""

    attention: str | None = None
    experts: str | None = None
    dtype: str | None = None
    inputs: list[str] | None = None
    shardable: Mapping[str, set[int]] | bool = True
    train: bool = True
    weights: bool = False
    batch: int = 3
    sequence: int = 17
    trust_remote_code: bool = False


def export_model(model: pathlib.Path | Any, options: Options, out: pathlib.Path | None = None) -> Exported:
    """Exports the Hugging Face model in a directory, or of a config of transformers."""
    import checkpoint
    import hugging_face
    import transformers

    folder = pathlib.Path(model) if isinstance(model, (str, pathlib.Path)) else None
    config = hugging_face.load_config(folder, options.trust_remote_code) if folder else model
    dtype = _dtype(config, options)
    how = {"attention": options.attention, "experts": options.experts, "trust_remote_code": options.trust_remote_code}
    if options.weights:
        module = hugging_face.build(config, dtype, folder=folder, **how)
    else:
        module = hugging_face.build_fake(config, dtype, **how)
    names = options.inputs or hugging_face.default_inputs(module)
    inputs, varying = hugging_face.example_inputs(module, names, options.batch, options.sequence)
    extra = {
        "exporter": {"torch": torch.__version__.partition("+")[0], "transformers": transformers.__version__},
        "model": {"class": type(module).__name__, "defined_in": type(module).__module__, "type": config.model_type,
                  "config": hugging_face.config_text(folder, config)},
        "options": {"attention": module.config._attn_implementation, "dtype": dtype_name(dtype),
                    "experts": getattr(module.config, "_experts_implementation", None)},
        "weights": checkpoint.conversions(module, folder),
    }  # fmt: skip
    with hugging_face.traceable(packed="position_ids" in inputs):
        return export(module, (), inputs, out, dynamic_shapes=varying, shardable=options.shardable, train=options.train,
                      weights=options.weights, constants=hugging_face.forward_options(module),
                      kinds=hugging_face.kind_of, extra=extra)  # fmt: skip


def _dtype(config: Any, options: Options) -> torch.dtype:
    dtype = options.dtype or config.dtype or config.get_text_config().dtype or torch.float32
    return getattr(torch, dtype) if isinstance(dtype, str) else dtype
