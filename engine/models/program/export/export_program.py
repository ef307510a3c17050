#!/usr/bin/env python3
"""Exports a PyTorch model as a program that moonshard's C++ engine runs, trains and shards under a plan.

    export_program.py MODEL OUT.pt2 [options]      MODEL: a directory with a Hugging Face config.json
    export_program.py MODEL OUT [options]          a directory of programs: with and without mask, positions, ...
    export_program.py MODEL OUT --lengths 64 256   also one for each range of lengths

    from export_program import export              for your own module

Without --weights, weights are neither needed nor written: parameters have a shape and no values, so a model of any size
can be exported on a laptop. README.md in this directory specifies the format.
"""

import argparse
import contextlib
import dataclasses
import inspect
import json
import pathlib
import re
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

# The exporter replaces internals of torch while it traces; it was tested with torch of these versions.
TORCH = (2, 9), (2, 15)
if not TORCH[0] <= tuple(int(part) for part in torch.__version__.split(".")[:2]) <= TORCH[1]:
    problem = "torch {}: the exporter needs torch {}.{} to {}.{}".format(torch.__version__, *TORCH[0], *TORCH[1])
    if __name__ == "__main__":
        sys.exit(f"error: {problem}")
    raise ImportError(problem)

sys.path.insert(0, str(pathlib.Path(__file__).parent))

from torch.export.graph_signature import InputKind  # noqa: E402
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode  # noqa: E402

import modes  # noqa: E402
from expressions import evaluate, has_value, symbols_in, to_json, to_python  # noqa: E402
from initial_values import buffer_values, initial_values, reset  # noqa: E402
from tracing import (  # noqa: E402
    ExportError,
    Trace,
    dtype_name,
    in_torch,
    input_names,
    shape_of,
    trace,
    without_values,
)

FORMAT = 1
LONGEST = 4096  # the largest size of an input dim that `valid` covers


@dataclasses.dataclass
class Exported:
    """The result of `export`: the program of torch.export, and the description that the archive stores with it."""

    program: torch.export.ExportedProgram
    description: dict[str, Any]
    weights: bool = False  # whether the archive holds the values of parameters and buffers

    def save(self, path: str | pathlib.Path) -> None:
        state = self.program.state_dict
        if not self.weights:
            # Tensors without values share one empty record. torch.export.load allocates zeros for the first tensor of a
            # record, and the others are views of these zeros: so the largest tensor must be the first.
            longest_first = sorted(state.items(), key=lambda one: -one[1].numel() * one[1].element_size())
            state.clear()
            state.update(longest_first)
        # Written in a staging directory under its final name, because torch names the directory in the archive after
        # the file; moved to `path` when the file is complete.
        path = pathlib.Path(path)
        with warnings.catch_warnings(), tempfile.TemporaryDirectory(dir=path.absolute().parent) as staging:
            warnings.simplefilter("ignore")
            made = pathlib.Path(staging) / path.name
            torch.export.save(self.program, made, extra_files={"moonshard.json": json.dumps(self.description)})
            made.replace(path)


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
    initialise: Callable[[str, torch.nn.Module], None] = reset,
) -> Exported:
    """Exports `module(*args, **kwargs)` and, with `out`, writes the archive, or a directory of archives if `out` does not
    end in .pt2: one in the given mode, and one for evaluation if the module computes something else in it.

    dynamic_shapes   as in torch.export, by argument name; default: the first two dims of each tensor are dynamic
    shardable        dims of parameters that plans may shard, by name; True: those of `shardable_dims`; False: none. If
                     tracing with these dims fails, it is repeated with fewer, down to none, and a note reports this
    train            whether the module is traced in training mode, so that the graph has its dropout
    weights          whether the archive holds the values of parameters and buffers
    constants        further arguments, which are constants of the program and not inputs: flags, numbers
    kinds, extra     for the description: `kinds` returns the kind of an input, `extra` has keys that replace others
    initialise       sets the initial values of a module's own tensors; called with the module's path and the module
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
    modes = [(one, one.training) for one in module.modules()]
    buffers = buffer_values(module)
    restore = (lambda: None) if weights else without_values(module)
    try:
        module.train(train)
        notes: list[str] = []
        traced, how = _trace_with_fewer_dims(module, inputs, fixed, dynamic_shapes, shardable, notes)
        differs = _differs_in_evaluation(module, inputs, fixed, dynamic_shapes, how, traced) if train else None
        if differs:
            notes.append(f"In evaluation mode the model computes something else ({differs}): this program is for training; "
                         "the program for evaluation is exported with --eval, or in a directory of archives")  # fmt: skip
        description = {**_describe(module, traced, inputs, kinds, notes), **(extra or {})}
        keep = without_values(module)
        for name, value in {**buffers, **initial_values(module, initialise)}.items():
            description["tensors"][name]["initial"] = value
        keep()
    finally:
        restore()
        for one, mode in modes:
            one.training = mode
    dtypes = {dtype_name(one.dtype) for one in module.parameters() if one.is_floating_point()}
    own: dict[str, Any] = {"dtype": dtypes.pop()} if len(dtypes) == 1 else {}
    if differs:
        own["evaluates"] = False
    description["options"] = {"train": train, "autocast_regions": True, **own, **description.get("options", {}),
                              "example": _example(inputs)}  # fmt: skip
    result = Exported(traced.program, description, weights)
    if out is None:
        return result
    if pathlib.Path(out).suffix == ".pt2":
        result.save(out)
        return result
    with _complete(pathlib.Path(out)) as folder:
        result.save(folder / "default.pt2")
        programs = [_entry("default.pt2", result)]
        if not own.get("evaluates", True):
            evaluation = export(module, args, kwargs, folder / "evaluation.pt2", dynamic_shapes=dynamic_shapes,
                                shardable=shardable, train=False, weights=weights, constants=constants, kinds=kinds,
                                extra=extra, initialise=initialise)  # fmt: skip
            programs.append(_entry("evaluation.pt2", evaluation))
        _write_index(folder, programs)
    return result


@contextlib.contextmanager
def _complete(out: pathlib.Path) -> Iterator[pathlib.Path]:
    """A staging directory, whose files are moved to the directory `out` if no error is raised; the index is the last."""
    near = next(one for one in (out.absolute(), *out.absolute().parents) if one.exists())
    with tempfile.TemporaryDirectory(dir=near) as staging:
        yield pathlib.Path(staging)
        out.mkdir(parents=True, exist_ok=True)
        for file in sorted(pathlib.Path(staging).iterdir(), key=lambda one: one.name == "index.json"):
            file.replace(out / file.name)


def _entry(file: str, exported: Exported) -> dict[str, Any]:
    """The entry of an archive in the index of its directory."""
    inputs = [one["name"] for one in exported.description["inputs"]]
    return {"file": file, "inputs": inputs, "ranges": _lengths(exported.description)}


def _write_index(folder: pathlib.Path, programs: list[dict[str, Any]]) -> None:
    (folder / "index.json").write_text(json.dumps({"format": FORMAT, "programs": programs}, indent=1) + "\n")


def shardable_dims(module: torch.nn.Module) -> dict[str, set[int]]:
    """Dims of parameters that a colwise, rowwise or vocabulary plan may shard, by parameter.

    These are all dims of weights, the vocabulary dim of embeddings, and the dims of stacked experts except the expert
    dim. Tracing makes each dim an integer that must equal a fixed size, such as the width of the residual stream.
    """
    found: dict[str, set[int]] = {}
    embeddings = {id(p) for m in module.modules() if isinstance(m, torch.nn.Embedding) for p in m.parameters()}
    for name, parameter in module.named_parameters():
        owner = module.get_submodule(name.rpartition(".")[0])
        if id(parameter) in embeddings:
            found[name] = {0}
        elif isinstance(owner, torch.nn.modules.conv._ConvNd):
            if owner.groups == owner.in_channels == owner.out_channels:
                found[name] = {0}
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


def _trace_with_fewer_dims(module, inputs, fixed, dynamic_shapes, shardable, notes: list[str]) -> tuple[Trace, tuple]:
    """Traces with all shardable dims symbolic; if that fails, with fewer: without dims of norms, then without any. The
    second result is (cut, follow) of the trace."""
    if shardable is False:
        tries = [({}, False)]
    elif shardable is True:
        dims = shardable_dims(module)
        matrices = {name: found for name, found in dims.items() if module.get_parameter(name).dim() > 1
                    or name.endswith("bias")}  # fmt: skip
        tries = [(dims, True), (dims, False), (matrices, False), ({}, False)]
    else:
        dims = {name: set(found) for name, found in shardable.items()}
        tries = [(dims, True), (dims, False), ({}, False)]
    for cut, follow in tries:
        try:
            traced = trace(module, inputs, dynamic_shapes, cut, fixed, follow)
            if isinstance(shardable, Mapping):
                notes += _fixed_dims(traced, shardable)
            return traced, (cut, follow)
        except Exception as error:
            if not cut:
                raise (_of_values(error) or error) from error
            first = str(error).strip().splitlines() or [type(error).__name__]
            how = " and the config sizes that depend on them" if follow else ""
            notes.append(
                f"Tracing with {sum(map(len, cut.values()))} symbolic dims of parameters{how} failed: {first[0]}"
            )
    raise AssertionError("one trace has no symbolic dims of parameters")


def _differs_in_evaluation(module, inputs, fixed, dynamic_shapes, how: tuple, traced: Trace) -> str | None:
    """The first thing that the module computes in evaluation mode and a reader cannot derive from its graph in training."""
    module.eval()
    try:
        return modes.difference(traced.program, trace(module, inputs, dynamic_shapes, how[0], fixed, how[1]).program)
    except Exception as error:
        return f"no trace of it: {(str(error).strip().splitlines() or [type(error).__name__])[0]}"
    finally:
        module.train()


def _of_values(error: Exception) -> ExportError | None:
    """Where the model computes a size or a branch from the values of a tensor, if that is what stopped the trace."""
    if not isinstance(error, GuardOnDataDependentSymNode):
        return None
    calls = re.findall(r'File "([^"]+)", line (\d+), in \S+\n\s+(.+)', str(error).rpartition("raised this error:")[2])
    if not calls:
        own = str(pathlib.Path(__file__).parent)
        calls = [(one.filename, one.lineno, one.line) for one in traceback.extract_tb(error.__traceback__)
                 if not in_torch(one.filename) and not one.filename.startswith(own)]  # fmt: skip
    place = "{}:{}: `{}`".format(*calls[-1]) if calls else str(error).strip().splitlines()[0]
    return ExportError(f"the model takes a branch or a size from the values of a tensor, and a graph has neither: {place}")


def _fixed_dims(traced: Trace, wanted: Mapping[str, set[int]]) -> list[str]:
    """Notes on dims of `wanted` that are not symbolic: each must equal a fixed size of the graph or another tensor."""
    nodes = {node.name: node.meta["val"] for node in traced.program.graph.nodes if node.op == "placeholder"}
    shapes = {spec.target: nodes[spec.arg.name].shape for spec in traced.program.graph_signature.input_specs
              if spec.kind == InputKind.PARAMETER}  # fmt: skip
    fixed = [(name, dim) for name, dims in wanted.items() for dim in sorted(dims)
             if name in shapes and isinstance(to_json(shapes[name][dim]), int)]  # fmt: skip
    return [f"{name}: dim {dim} is not symbolic, because it must equal a fixed size" for name, dim in fixed]


# --- The description --------------------------------------------------------------------------------------------------
def _describe(module, traced: Trace, inputs: Mapping[str, Any], kinds: Callable[[str], str], notes: list[str]) -> dict:
    tensors, ties = _tensors(module, traced)
    guards = traced.guards
    fixed = [name for name, one in tensors.items() if one["kind"] == "parameter" and "symbolic" not in one]
    if fixed and len(fixed) < len(tensors):
        notes.append(f"{len(fixed)} parameters have no symbolic dim")
    elif fixed:
        notes.append("No parameter has a symbolic dim: the graph has the sizes of full parameters as constants")
    not_kept = [{"kind": "backward", "name": name} for name in traced.functions]
    not_kept += [{"kind": kind, "name": name} for kind, name in traced.assigned]
    notes += [_NOT_KEPT[one["kind"]].format(one["name"]) for one in not_kept]
    example = {name: one["example"] for name, one in traced.symbols.items() if "example" in one}
    notes += [f"No size is valid: the condition '{one['text']}' cannot be evaluated ({one['place']})"
              for one in guards if not has_value(one["condition"], example)]  # fmt: skip
    for one in guards:
        if has_value(one["condition"], example) and not evaluate(one["condition"], example):
            raise ExportError(f"the recorded condition '{one['text']}' does not hold for the example ({one['place']}): "
                              "this is a fault of the exporter")  # fmt: skip
    custom = [name for name in operators(traced.program) if not name.startswith(("aten::", "higher_order::", "number::"))]
    if custom:
        notes.append("Operators that are not PyTorch's own: " + ", ".join(custom))
    return {
        "format": FORMAT,
        "exporter": {"torch": torch.__version__.partition("+")[0], "transformers": None},
        "model": {"class": type(module).__name__, "defined_in": type(module).__module__, "type": None, "config": None},
        "options": {},
        "inputs": _inputs(traced, inputs, kinds),
        "fixed": {},
        "outputs": _outputs(traced),
        "symbols": traced.symbols,
        "guards": guards,
        "valid": _valid(traced),
        "modules": [{"path": path, "class": type(one).__name__}
                    for path, one in module.named_modules(remove_duplicate=False)],
        "tensors": tensors,
        "ties": ties,
        "calls": traced.calls,
        "weights": {"source": "module", "tensors": {}, "unsupported": {}},
        "not_kept": not_kept,
        "notes": notes,
    }  # fmt: skip


_NOT_KEPT = {
    "backward": "{} defines its own backward, which is not in the graph: gradients follow from the operators of its forward",
    "buffer": "forward assigns a new tensor to {}: the program does not change it (the graph keeps only in-place writes)",
    "attribute": "forward changes {}: the program has the value of the first call as a constant",
}


def _inputs(traced: Trace, inputs: Mapping[str, Any], kinds: Callable[[str], str]) -> list[dict[str, Any]]:
    nodes = {node.name: node for node in traced.program.graph.nodes if node.op == "placeholder"}
    specs = [spec for spec in traced.program.graph_signature.input_specs if spec.kind == InputKind.USER_INPUT]
    return [{"name": name, "value": spec.arg.name, **_type(nodes[spec.arg.name].meta["val"]), "kind": kinds(name)}
            for spec, name in zip(specs, input_names(dict(inputs))) if spec.arg.name in nodes]  # fmt: skip


def _type(value: Any) -> dict[str, Any]:
    if isinstance(value, torch.Tensor):
        return {"dtype": dtype_name(value.dtype), "shape": shape_of(value)}
    kind = {torch.SymInt: "int", torch.SymFloat: "float", torch.SymBool: "bool"}.get(type(value), type(value).__name__)
    return {"dtype": kind}


def _outputs(traced: Trace) -> list[dict[str, Any]]:
    values = [node.meta["val"] if hasattr(node, "meta") else node for node in traced.program.graph.output_node().args[0]]
    return [{"name": name, **({"shape": shape_of(value)} if isinstance(value, torch.Tensor) else {})}
            for name, value in zip(traced.outputs, values)]  # fmt: skip


def _tensors(module: torch.nn.Module, traced: Trace) -> tuple[dict[str, dict[str, Any]], list[list[str]]]:
    nodes = {node.name: node for node in traced.program.graph.nodes if node.op == "placeholder"}
    used = {spec.target: nodes[spec.arg.name].meta["val"] for spec in traced.program.graph_signature.input_specs
            if spec.target is not None}  # fmt: skip
    tensors: dict[str, dict[str, Any]] = {}
    groups: dict[int, list[str]] = {}
    for kind, named in (("parameter", module.named_parameters), ("buffer", module.named_buffers)):
        for name, tensor in named(remove_duplicate=False):
            one = {"kind": kind, "shape": list(tensor.shape), "dtype": dtype_name(tensor.dtype)}
            if name in used and shape_of(used[name]) != list(tensor.shape):
                one["symbolic"] = shape_of(used[name])
            if kind == "parameter":
                one["requires_grad"] = tensor.requires_grad
            else:
                path, _, leaf = name.rpartition(".")
                one["persistent"] = leaf not in module.get_submodule(path)._non_persistent_buffers_set
            tensors[name] = one
            groups.setdefault(id(tensor), []).append(name)
    ties = [sorted(names, key=lambda name: name not in used) for names in groups.values() if len(names) > 1]
    for first, *others in ties:
        for name in others:
            tensors[name] |= {key: tensors[first][key] for key in ("symbolic",) if key in tensors[first]}
    return tensors, ties


def operators(program: torch.export.ExportedProgram) -> list[str]:
    """The operators of the graph, with their namespaces: `aten::linear`, `number::floordiv`."""
    found = set()
    for graph_module in program.graph_module.modules():
        for node in getattr(graph_module, "graph", torch.fx.Graph()).nodes:
            if node.op != "call_function":
                continue
            if isinstance(node.target, torch._ops.OpOverload):
                found.add(node.target._schema.name)
            elif isinstance(node.target, torch._ops.HigherOrderOperator):
                found.add(f"higher_order::{node.target.name()}")
            else:
                found.add(f"number::{node.target.__name__}")
    return sorted(found)


def _valid(traced: Trace) -> dict[str, dict[str, Any]]:
    """For each symbol of an input, the sizes for which the guards hold if all other symbols are as in the example.

    A guard that cannot be evaluated holds for no size: a reader refuses all of them.
    """
    example = {name: one["example"] for name, one in traced.symbols.items() if "example" in one}
    evaluable = all(has_value(guard["condition"], example) for guard in traced.guards)
    found = {}
    for name, one in traced.symbols.items():
        if "input" not in one:
            continue
        if not evaluable:
            found[name] = {"ranges": [], "tried": LONGEST}
            continue
        conditions = [g["condition"] for g in traced.guards if name in symbols_in(g["condition"])]
        source = " and ".join(map(to_python, conditions)) or "True"
        others = ", ".join(f"{key}={value}" for key, value in example.items() if key != name)
        holds = eval(f"lambda {name}{', ' if others else ''}{others}: {source}")
        found[name] = {"ranges": _ranges(holds), "tried": LONGEST}
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
    """Exports a Hugging Face model, given as a directory or as a config of transformers."""
    import transformers

    import checkpoint
    import hugging_face

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
    known = hugging_face.known_inputs(inputs)
    conversions, notes = checkpoint.conversions(module, folder)
    extra = {
        "exporter": {"torch": torch.__version__.partition("+")[0], "transformers": transformers.__version__},
        "model": {"class": type(module).__name__, "defined_in": type(module).__module__, "type": config.model_type,
                  "config": hugging_face.config_text(folder, config)},
        "options": {"attention": module.config._attn_implementation, "dtype": dtype_name(dtype),
                    "experts": getattr(module.config, "_experts_implementation", None)},
        "fixed": {name: value.tolist() for name, value in known.items()},
        "weights": conversions,
    }  # fmt: skip
    with hugging_face.traceable(packed="position_ids" in inputs):
        exported = export(module, (), inputs, dynamic_shapes=varying, shardable=options.shardable, train=options.train,
                          weights=options.weights, constants={**hugging_face.forward_options(module), **known},
                          kinds=hugging_face.kind_of, extra=extra,
                          initialise=lambda path, one: hugging_face.owner_of(module, path)._init_weights(one))  # fmt: skip
    exported.description["notes"] += hugging_face.notes(module) + notes
    if out is not None:
        exported.save(out)
    return exported


def _dtype(config: Any, options: Options) -> torch.dtype:
    dtype = options.dtype or config.dtype or config.get_text_config().dtype or torch.float32
    return getattr(torch, dtype) if isinstance(dtype, str) else dtype


# --- Comparison with eager --------------------------------------------------------------------------------------------
@dataclasses.dataclass
class Difference:
    """The largest difference of each result from the model's result, relative to the largest value of that result."""

    shape: str
    results: dict[str, float]

    @property
    def worst(self) -> float:
        return max(self.results.values(), default=0.0)


def check(exported: Exported, real: torch.nn.Module, examples: list[Mapping[str, Any]], constants: Mapping[str, Any],
          gradients: bool = True) -> list[Difference]:  # fmt: skip
    """Runs the program in Python and the model on each example, with the model's weights and the same seed.

    Compares the outputs, the buffers in the archive and, if there is a loss, all gradients.
    """
    program = exported.program
    own = {**dict(real.named_parameters(remove_duplicate=False)), **dict(real.named_buffers(remove_duplicate=False))}
    for name in program.state_dict:
        tensor = own[name].detach()
        parameter = isinstance(own[name], torch.nn.Parameter)
        program.state_dict[name] = torch.nn.Parameter(tensor, own[name].requires_grad) if parameter else tensor
    buffers = {f"buffer {name}": _difference(own[name], value) for name, value in program.constants.items()
               if name in own and isinstance(value, torch.Tensor)}  # fmt: skip
    found = [Difference("constants", buffers)]
    real.train(exported.description["options"]["train"])
    runnable = program.module(check_guards=False)
    names = [one["name"] for one in exported.description["outputs"]]
    for example in examples:
        torch.manual_seed(0)
        results = runnable(**{name: one for name, one in example.items() if name not in exported.description["fixed"]})
        torch.manual_seed(0)
        eager = real(**example, **constants)
        differences = {name: _difference(_field(eager, name), one) for name, one in zip(names, results)}
        if gradients and "loss" in names and results[names.index("loss")].requires_grad:
            differences |= _gradient_differences(runnable, real, results[names.index("loss")], eager.loss)
        found.append(Difference(" ".join(f"{k}{list(v.shape)}" for k, v in example.items()), differences))
    return found


def _field(result: Any, name: str) -> Any:
    keys = name.split(".")
    if keys[0] == "output" and not isinstance(result, Mapping):
        keys = keys[1:]
    for key in keys:
        result = result[int(key)] if isinstance(result, (tuple, list)) else result[key]
    return result


def _difference(expected: Any, got: Any) -> float:
    if not isinstance(expected, torch.Tensor):
        return 0.0 if expected == got else float("inf")
    if not isinstance(got, torch.Tensor) or got.shape != expected.shape:
        return float("inf")
    expected, got = expected.detach().double(), got.detach().double()
    if expected.numel() == 0 or torch.equal(expected, got):
        return 0.0
    difference = ((expected - got).abs().max() / expected.abs().max().clamp(min=1e-30)).item()
    return difference if difference == difference else float("inf")


def _gradient_differences(runnable, real, loss: torch.Tensor, expected: torch.Tensor) -> dict[str, float]:
    ours = {name: p for name, p in runnable.named_parameters() if p.requires_grad}
    theirs = {name: p for name, p in real.named_parameters() if p.requires_grad and name in ours}
    got = torch.autograd.grad(loss, [ours[name] for name in theirs], allow_unused=True)
    wanted = torch.autograd.grad(expected, list(theirs.values()), allow_unused=True)
    return {f"grad {name}": _difference(b, a) if a is not None and b is not None else float((a is None) != (b is None))
            for name, a, b in zip(theirs, got, wanted)}  # fmt: skip


def check_model(model: pathlib.Path | Any, options: Options, exported: Exported) -> list[Difference]:
    """`check` of a Hugging Face model with the weights of its directory, or random ones, on up to three input sizes."""
    import hugging_face

    folder = pathlib.Path(model) if isinstance(model, (str, pathlib.Path)) else None
    config = hugging_face.load_config(folder, options.trust_remote_code) if folder else model
    stored = folder if folder and any(folder.glob("*.safetensors")) else None
    real = hugging_face.build(config, _dtype(config, options), options.attention, options.experts, stored,
                              options.trust_remote_code)  # fmt: skip
    if stored is None:
        hugging_face.randomise(real)
    names = [*(one["name"] for one in exported.description["inputs"]), *exported.description["fixed"]]
    sizes = [(options.batch, options.sequence), (1, options.sequence + 6), (options.batch + 1, options.sequence - 1)]
    if exported.description["fixed"]:
        sizes = [(options.batch, length) for _, length in sizes]
    examples = [hugging_face.example_inputs(real, names, *size, seed=i)[0] for i, size in enumerate(sizes)]
    broken = [broken_guards(exported.description, one) for one in examples]
    examples = [one for one, why in zip(examples, broken) if not why]
    if not examples:
        raise ExportError(f"no example fits the program, so nothing can be compared: {broken[0][0]}")
    with hugging_face.without_dropped_layers():
        return check(exported, real, examples, hugging_face.forward_options(real))


def broken_guards(description: Mapping[str, Any], inputs: Mapping[str, torch.Tensor]) -> list[str]:
    """The guards and fixed sizes that these inputs violate, with full parameters."""
    values = {name: one["example"] for name, one in description["symbols"].items() if "example" in one}
    broken = []
    for one in description["inputs"]:
        for dim, size in enumerate(one.get("shape", ())):
            given = inputs[one["name"]].shape[dim]
            if isinstance(size, str):
                values[size] = given
            elif size != given:
                broken.append(f"{one['name']}: dim {dim} must have size {size}, not {given}")
    return broken + [guard["text"] for guard in description["guards"]
                     if not has_value(guard["condition"], values) or not evaluate(guard["condition"], values)]  # fmt: skip


# --- Command line -----------------------------------------------------------------------------------------------------
def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("model", type=pathlib.Path, help="directory with config.json, and weights for --weights (optional for --check)")
    add("out", type=pathlib.Path, help="the archive (.pt2), or a directory of archives: for each set of inputs and each length")
    add("--attention", help="attention implementation of transformers (default: as the model prefers, sdpa or eager)")
    add("--experts", help="experts implementation: grouped_mm, or batched_mm (default: by the size of rows)")
    add("--dtype", help="dtype of weights and computation (default: that of config.json, else float32)")
    add("--inputs", nargs="+", metavar="NAME", action="append", help="inputs of forward; repeated, for a directory: one "
        "archive for each set (default: the main input, decoder ids, labels; for a directory also with mask and "
        "positions)")  # fmt: skip
    add("--cut", nargs="*", metavar="NAME:DIM", help="dims of parameters that plans may shard; NAME is part of "
        "a name, as in q_proj.weight:0 (default: linear layers, embeddings, experts); no value: none")  # fmt: skip
    add("--eval", action="store_true", help="trace the model in evaluation mode (default: training)")
    add("--weights", action="store_true", help="store the weights in the archive")
    add("--batch", type=int, default=3, help="batch size of the example (default: 3)")
    add("--sequence", type=int, default=17, help="sequence length of the example (default: 17)")
    add("--lengths", type=int, nargs="+", metavar="N", help="write one archive for each example length N")
    add(
        "--check", action="store_true", help="compare outputs and gradients with the model, which needs its memory"
    )
    add("--tolerance", type=float, default=1e-5, help="relative tolerance of --check (default: 1e-5)")
    add("--trust-remote-code", action="store_true", help="run Python code of the model directory")
    return parser


def _cut(selected: list[str], model: pathlib.Path, options: Options) -> dict[str, set[int]]:
    """The dims that NAME:DIM arguments select, by parameter."""
    import hugging_face

    config = hugging_face.load_config(model, options.trust_remote_code)
    module = hugging_face.build_fake(config, _dtype(config, options), trust_remote_code=options.trust_remote_code)
    found: dict[str, set[int]] = {}
    for one in selected:
        part, _, dim = one.rpartition(":")
        if not part or not dim.isdecimal():
            raise SystemExit(f"--cut {one}: required: NAME:DIM, as in q_proj.weight:0")
        names = [name for name, p in module.named_parameters() if part in name and p.dim() > int(dim)]
        if not names:
            raise SystemExit(f"--cut {one}: no parameter whose name contains {part!r} has a dim {dim}")
        for name in names:
            found.setdefault(name, set()).add(int(dim))
    return found


def main(arguments: list[str] | None = None) -> int:
    given = _parser().parse_args(arguments)
    options = Options(given.attention, given.experts, given.dtype, None, True, not given.eval, given.weights,
                      given.batch, given.sequence, given.trust_remote_code)  # fmt: skip
    if given.cut is not None:
        options.shardable = _cut(given.cut, given.model, options) if given.cut else False
    try:
        return _export_all(given, options)
    except ExportError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def _export_all(given: argparse.Namespace, options: Options) -> int:
    if given.out.suffix == ".pt2":
        if given.lengths or len(given.inputs or ()) > 1:
            raise ExportError(f"{given.out} is one archive: several lengths or sets of inputs need a directory as OUT")
        options.inputs = given.inputs[0] if given.inputs else None
        return 0 if _export_one(given, options, given.out)[1] else 1
    sets = given.inputs or _input_sets(given.model, options)
    with _complete(given.out) as folder:
        return _export_sets(given, options, sets, folder)


def _export_sets(given: argparse.Namespace, options: Options, sets: list[list[str]], folder: pathlib.Path) -> int:
    programs, agree = [], True
    for length in given.lengths or [given.sequence]:
        for names in sets:
            own = [] if names == sets[0] else ["+".join(sorted(set(names) - set(sets[0]))) or str(sets.index(names))]
            file = "-".join(([str(length)] if given.lengths else [] if own else ["default"]) + own) + ".pt2"
            try:
                exported, good = _export_one(given, dataclasses.replace(options, sequence=length, inputs=names), folder / file)
            except Exception as error:
                if given.inputs or not own:
                    raise
                print(f"{given.out / file}: not written: {str(error).strip().splitlines()[0]}")
                continue
            agree &= good
            programs.append(_entry(file, exported))
            if exported.description["options"].get("evaluates", True):
                continue
            file = file.removesuffix(".pt2") + ".evaluation.pt2"
            how = dataclasses.replace(options, sequence=length, inputs=names, train=False)
            exported, good = _export_one(given, how, folder / file)
            agree &= good
            programs.append(_entry(file, exported))
    _write_index(folder, programs)
    return 0 if agree else 1


def _input_sets(model: pathlib.Path, options: Options) -> list[list[str]]:
    import hugging_face

    config = hugging_face.load_config(model, options.trust_remote_code)
    return hugging_face.input_sets(
        hugging_face.build_fake(config, _dtype(config, options), trust_remote_code=options.trust_remote_code)
    )


def _lengths(description: Mapping[str, Any]) -> list[list[int]]:
    """The valid sequence lengths of the main input."""
    size = next(iter(description["inputs"][0].get("shape", [])[1:]), 1) if description["inputs"] else 1
    return description["valid"][size]["ranges"] if size in description["valid"] else [[size, size]]


def _export_one(given: argparse.Namespace, options: Options, out: pathlib.Path) -> tuple[Exported, bool]:
    exported = export_model(given.model, options, out)
    description = exported.description
    shown = given.out if given.out.suffix == ".pt2" else given.out / out.name
    print(f"{shown}: {sum(1 for _ in exported.program.graph.nodes)} nodes, {len(description['guards'])} guards")
    for name, one in description["valid"].items():
        if one["ranges"] != [[1, LONGEST]]:
            symbol = description["symbols"][name]
            ranges = ", ".join(f"{a} to {b}" if a != b else str(a) for a, b in one["ranges"][:8])
            print(f"  {symbol['input']} dim {symbol['dim']}: {ranges}{', ...' if len(one['ranges']) > 8 else ''}")
    for note in description["notes"]:
        print(f"  note: {note}")
    for name, one in description["weights"]["unsupported"].items():
        print(f"  {name} cannot be loaded: {one['reason']}")
    if not given.check:
        return exported, True
    good = True
    for one in check_model(given.model, options, exported):
        name = max(one.results, key=one.results.get, default="")
        print(f"  {one.shape}: largest difference {one.worst:.1e}{f' ({name})' if one.worst else ''}")
        good &= one.worst <= given.tolerance
    return exported, good


if __name__ == "__main__":
    sys.exit(main())
