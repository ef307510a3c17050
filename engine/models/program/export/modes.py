"""Compares the graphs of one module in training and in evaluation mode.

A program that was exported in training runs in both modes if its two graphs differ only in what a reader switches by the
mode of the module: dropout, norms with running statistics, and the count of their batches.
"""

import itertools
import re
from collections.abc import Mapping
from typing import Any

import torch
from torch.export import ExportedProgram

from tracing import in_torch

aten = torch.ops.aten
# Arguments that a reader sets by the mode of the module, if they are true (a probability) in training.
_FLAGS = ("train", "training", "use_input_stats", "dropout_p")


def difference(training: ExportedProgram, evaluation: ExportedProgram) -> str | None:
    """Returns the first node that the two graphs do not have in common, as its operator and its line in the model; None if
    a reader makes the second graph from the first."""
    return _difference(training.graph_module, evaluation.graph_module)


def _difference(training: torch.fx.GraphModule, evaluation: torch.fx.GraphModule) -> str | None:
    counterpart: dict[torch.fx.Node, torch.fx.Node] = {}
    nodes = [[node for node in one.graph.nodes if not _is_skipped(node)] for one in (training, evaluation)]
    for ours, theirs in itertools.zip_longest(*nodes):
        if ours is None or theirs is None or ours.op != theirs.op:
            return _name(ours or theirs)
        counterpart[theirs] = ours
        if ours.op == "get_attr":
            parts = getattr(training, ours.target, None), getattr(evaluation, theirs.target, None)
            if all(isinstance(part, torch.fx.GraphModule) for part in parts) and (found := _difference(*parts)):
                return found
        elif ours.op != "placeholder" and not _alike(ours, theirs, counterpart):
            return _name(ours)
    return None


def _alike(ours: torch.fx.Node, theirs: torch.fx.Node, counterpart: dict[torch.fx.Node, torch.fx.Node]) -> bool:
    if ours.target != theirs.target:
        return False
    map_arg = torch.fx.node.map_arg
    ours_by_name = _by_name(ours, *map_arg((ours.args, ours.kwargs), _source))
    theirs_by_name = _by_name(ours, *map_arg((theirs.args, theirs.kwargs), lambda node: _source(node, counterpart)))
    off = bool(ours_by_name.get("train")) and not theirs_by_name.get("train")
    for name in {**ours_by_name, **theirs_by_name}:
        one, other = ours_by_name.get(name), theirs_by_name.get(name)
        switched = name in _FLAGS and one and not (name in ("training", "use_input_stats") and _has_no_statistics(ours_by_name))
        if switched and other and ours_by_name.get("p") != 0:
            return False  # on in both modes, where a reader would switch it off
        if not switched and one != other and not (off and name == "p"):
            return False
    return True


def _has_no_statistics(arguments: dict[str, Any]) -> bool:
    return "running_mean" in arguments and arguments["running_mean"] is None


def _by_name(node: torch.fx.Node, args: tuple, kwargs: dict[str, Any]) -> dict[str, Any]:
    if not isinstance(node.target, torch._ops.OpOverload):
        return {**dict(enumerate(args)), **kwargs}
    formal = node.target._schema.arguments
    defaults = {one.name: one.default_value for one in formal if one.has_default_value()}
    return {**defaults, **{one.name: value for one, value in zip(formal, args)}, **kwargs}


def _source(node: torch.fx.Node, counterpart: Mapping[torch.fx.Node, torch.fx.Node] | None = None) -> Any:
    """The node that computes the value of `node`, in the graph in training. A size is its tensor and dim, because torch puts
    the nodes of sizes in another order."""
    while _returns_its_input(node):
        node = node.args[0]
    if node.target is aten.sym_size.int:
        return (_source(node.args[0], counterpart), node.args[1])
    return (counterpart or {}).get(node, node)


def _returns_its_input(node: torch.fx.Node) -> bool:
    """Whether the node has the values of its input. The shape function of attention returns other strides with dropout, so
    that only one of the graphs has a node `contiguous`."""
    if node.target is aten.to.dtype:
        return node.meta["val"].dtype == node.args[0].meta["val"].dtype
    return node.target is aten.contiguous.default


def _is_skipped(node: torch.fx.Node) -> bool:
    """Whether the node computes nothing, or counts batches, which a reader does in training only."""
    if _returns_its_input(node) or node.target in (aten._assert_tensor_metadata.default, aten.sym_size.int):
        return True
    return (node.target is aten.add_.Tensor and isinstance(node.args[0], torch.fx.Node) and node.args[0].op == "placeholder"
            and node.args[0].name.endswith("num_batches_tracked"))  # fmt: skip


def _name(node: torch.fx.Node) -> str:
    """The operator of a node, and the line of the model that calls it."""
    operation = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", str(node.target))
    lines = re.findall(r'File "([^"]+)", line (\d+)', node.meta.get("stack_trace") or "")
    lines = [(file, line) for file, line in lines if not in_torch(file)]
    if not lines:
        return str(operation)
    file, line = lines[-1]
    in_package = "site-packages/" in file
    return f"{operation}, {file.rpartition('site-packages/' if in_package else '/')[2]}:{line}"
