"""Traces a module with torch.export, and records module calls and conditions on sizes, which the graph does not have.

`trace` returns an ExportedProgram with the names of the module and with symbolic dims of parameters. torch.export does
not support these: parameters are inputs while tracing and become parameters again afterwards.
"""

import contextlib
import dataclasses
import functools
import inspect
import linecache
import operator
import pathlib
import re
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import sympy
import torch
from sympy.logic.boolalg import Boolean
from torch._C import DispatchKey
from torch._export.passes import replace_autocast_with_hop_pass, replace_set_grad_with_hop_pass
from torch._subclasses import fake_impls
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import Dim, ExportedProgram
from torch.fx.experimental.proxy_tensor import _temp_remove_pre_dispatch_torch_function_mode as without_function_mode
from torch._higher_order_ops.utils import reenter_make_fx
from torch.export.graph_signature import InputKind
from torch.fx.experimental import proxy_tensor
from torch.fx.experimental.symbolic_shapes import DimConstraints, ShapeEnv
from torch.utils import _pytree as pytree
from torch.utils._sympy import functions
from torch.utils.checkpoint import CheckpointFunction

import sizes
from expressions import symbols_in, to_json

_TORCH = pathlib.Path(torch.__file__).parent
# Frames of these files count as frames of their callers: methods of SymInt, and handlers that torch.export installs.
_TRANSPARENT = ("__init__.py", "fx/experimental/symbolic_shapes.py", "fx/experimental/sym_node.py", "utils/_sympy/",
                "fx/experimental/recording.py", "_export/non_strict_utils.py", "utils/_stats.py")  # fmt: skip
# Code of torch that counts as code of the model. All other code of torch computes shapes of operators.
_LIBRARY = ("nn/", "functional.py", "_tensor.py", "utils/checkpoint.py", "distributions/", "fft/")
_ASSERTING = ("embedding",)  # functions of torch that read sizes only to refuse invalid ones
# Methods of SymNode that operators in C++ call; Python's `if` and `bool` call SymBool.
_OF_OPERATORS = ("guard_bool", "guard_or_false", "guard_or_true", "guard_size_oblivious", "statically_known_true")
_MARK = "moonshard_value"  # the key of Node.meta by which recorded values are found in the finished graph


@dataclasses.dataclass
class Trace:
    """A traced module. `program` has no weights of its own: its state_dict holds the module's tensors."""

    program: ExportedProgram
    outputs: list[str]
    calls: list[dict[str, Any]]
    guards: list[dict[str, Any]]
    symbols: dict[str, dict[str, Any]]
    functions: list[str]  # autograd functions whose own backward is not in the graph
    assigned: list[tuple[str, str]]  # assignments in forward, not in the graph: ("buffer" or "attribute", name)


def shape_of(value: Any) -> list:
    """The shape of a traced tensor as expressions."""
    return [to_json(size) for size in value.shape]


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def without_values(module: torch.nn.Module) -> Callable[[], None]:
    """Replaces all tensors that checkpoints contain by tensors with a shape and no values; tied tensors stay tied.

    Returns a function that restores the tensors.
    """
    mode, made, before = FakeTensorMode(allow_non_fake_inputs=True), {}, []
    for one in module.modules():
        for table in (one._parameters, one._buffers):
            for name, tensor in table.items():
                if tensor is None or (table is one._buffers and name in one._non_persistent_buffers_set):
                    continue
                if id(tensor) not in made:
                    with mode:
                        fake = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cpu")
                    if isinstance(tensor, torch.nn.Parameter):
                        fake = torch.nn.Parameter(fake, requires_grad=tensor.requires_grad)
                    made[id(tensor)] = fake
                before.append((table, name, tensor))
                table[name] = made[id(tensor)]

    def restore() -> None:
        for table, name, tensor in before:
            table[name] = tensor

    return restore


# --- Conditions -------------------------------------------------------------------------------------------------------
class _Conditions:
    """Records each condition on sizes that code of the model evaluates while the model runs, with its place."""

    def __init__(self) -> None:
        self.active = False
        self.found: dict[sympy.Basic, str] = {}  # condition: place
        self.functions: set[str] = set()  # autograd functions, whose own backward is not in the graph

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        with _recurrent_shapes(), self._watching():
            yield

    @contextlib.contextmanager
    def _watching(self) -> Iterator[None]:
        evaluate = ShapeEnv.evaluate_sym_node

        def recorded(env, node, *args, **kwargs):
            if not self.active or not isinstance(node.expr, sympy.Basic) or not node.expr.free_symbols:
                return evaluate(env, node, *args, **kwargs)
            of_model = _of_model()
            if of_model and node.hint is None and _asserts():
                return sympy.true
            if not of_model and (known := _of_example(env, node)) is not None:
                return known
            result = evaluate(env, node, *args, **kwargs)
            if of_model:
                self._record(node.expr, result)
            return result

        # Views keep the given sizes: otherwise a view as [-1, 8] has the sizes s // 8 and s // (s // 8).
        views, fake_impls._view_has_unbacked_input = fake_impls._view_has_unbacked_input, lambda *_: True
        # torch's suggestions of dynamic dims for users are not needed; they are slow and fail on some equations.
        solve, DimConstraints.solve = DimConstraints.solve, lambda _: None
        apply = torch.autograd.Function.__dict__["apply"]

        def applied(cls, *args, **kwargs):
            # Custom operators and torch.cond, whose backward is registered, and reentrant checkpointing, whose backward
            # is that of the operators of its forward.
            if not issubclass(cls, CheckpointFunction) and not cls.__name__.startswith(("GeneratedBackwardFor", "CondAutogradOp")):
                self.functions.add(cls.__name__)
            # A forward may disable gradients because its own backward runs it again with gradients.
            no_grad, torch.no_grad = torch.no_grad, contextlib.nullcontext
            try:
                return apply.__get__(None, cls)(*args, **kwargs)
            finally:
                torch.no_grad = no_grad

        torch.autograd.Function.apply = classmethod(applied)
        ShapeEnv.evaluate_sym_node = recorded
        try:
            yield
        finally:
            torch.autograd.Function.apply = apply
            ShapeEnv.evaluate_sym_node = evaluate
            DimConstraints.solve = solve
            fake_impls._view_has_unbacked_input = views

    def _record(self, expression: sympy.Basic, result: Any) -> None:
        if isinstance(expression, Boolean) and not expression.is_Symbol:
            condition = expression if result else sympy.Not(expression)
        else:
            condition = sympy.Eq(expression, result, evaluate=False)
        if condition not in self.found and not (result and _cuts_padding()):
            self.found[condition] = _place()

    def finished(self, program: ExportedProgram, env: ShapeEnv) -> list[dict[str, Any]]:
        """The conditions that are not always true, in the symbols of the graph."""
        found = [(condition, place, "model") for condition, place in self.found.items()]
        found += [(condition, place, "operator") for condition, place in _counts_of_results(program)]
        guards = {}
        for condition, place, origin in found:
            condition = _replaced(condition, env)
            if condition.free_symbols and not _always(condition):
                guard = {"condition": to_json(condition), "text": str(condition), "place": place, "origin": origin}
                guards.setdefault(str(condition), guard)
        return list(guards.values())


@contextlib.contextmanager
def _recurrent_shapes() -> Iterator[None]:
    """Shape functions of the recurrent operators. torch's own ones run the recurrence, which fixes the length."""
    aten = torch.ops.aten
    before = []
    for op in (aten.lstm.input, aten.gru.input, aten.rnn_tanh.input, aten.rnn_relu.input):
        for key in (DispatchKey.CompositeImplicitAutograd, DispatchKey.Autograd):
            before.append((op, key, op.py_kernels.get(key)))
            op.py_kernels[key] = functools.partial(_recurrent_results, op is aten.lstm.input)
        op._dispatch_cache.clear()
    try:
        yield
    finally:
        for op, key, kernel in before:
            del op.py_kernels[key]
            if kernel is not None:
                op.py_kernels[key] = kernel
            op._dispatch_cache.clear()


def _recurrent_results(with_cells: bool, x, hidden, _parameters, _biases, _layers, _dropout, _train, bidirectional, *_):
    states = hidden if with_cells else [hidden]
    features = states[0].shape[-1] * (2 if bidirectional else 1)
    return (x.new_empty(*x.shape[:2], features), *(one.new_empty(one.shape) for one in states))


def _counts_of_results(program: ExportedProgram) -> Iterator[tuple[sympy.Basic, str]]:
    """The number of results of each `chunk` and `split`, as a condition on the size of the split dim."""
    for graph_module in program.graph_module.modules():
        for node in getattr(graph_module, "graph", torch.fx.Graph()).nodes:
            name = node.target._schema.name if isinstance(node.target, torch._ops.OpOverload) else ""
            if name not in ("aten::chunk", "aten::split") or not isinstance(node.args[1], int):
                continue
            dim = node.args[2] if len(node.args) > 2 else node.kwargs.get("dim", 0)
            size = node.args[0].meta["val"].shape[dim]
            if isinstance(size, torch.SymInt):
                size, step = size.node.expr, sympy.Integer(node.args[1])
                if name == "aten::chunk":
                    step = functions.FloorDiv(size + step - 1, step)
                count = sympy.Integer(len(node.meta["val"]))
                yield sympy.Eq(functions.FloorDiv(size + step - 1, step), count), node.name


def _of_example(env: ShapeEnv, node: Any) -> sympy.Basic | None:
    """The value of a shape function's condition in the example, or None if torch must evaluate the condition.

    torch would prove the condition or add it to its assumptions. This makes exports ten times slower and is not needed,
    because the operators check the condition at run time. torch must learn which sizes are equal, though.
    """
    if not isinstance(node.expr, Boolean) or node.expr.is_Symbol or node.hint is None:  # a Symbol counts as a Boolean
        return None
    if node.hint and isinstance(node.expr, sympy.Eq):
        left, right = _without_common_factors(*node.expr.args)
        if left.is_Atom and right.is_Atom and left != right:
            env.evaluate_expr(sympy.Eq(left, right), sympy.true)
        elif isinstance(left, functions.Mod) and right == 0:
            _pin(env, *_without_common_factors(*left.args, numbers=False))
    return sympy.true if node.hint else sympy.false


def _pin(env: ShapeEnv, product: sympy.Basic, divisor: sympy.Basic) -> None:
    """Makes the factor of `product` that equals `divisor` an integer: the rows of a view [-1, divisor] are the rest."""
    factors = sympy.Mul.make_args(product)
    for factor in factors:
        if (
            divisor.is_Integer
            and len(factors) > 1
            and factor.is_Symbol
            and _examples(env).get(factor) == divisor
        ):
            env.evaluate_expr(sympy.Eq(factor, divisor), sympy.true)
            return


def _examples(env: ShapeEnv) -> Mapping[sympy.Basic, sympy.Basic]:
    """The values of the symbols in the example; torch 2.9 and 2.10 have them under another name."""
    return env.backed_var_to_val if hasattr(env, "backed_var_to_val") else env.var_to_val


def _without_common_factors(
    left: sympy.Basic, right: sympy.Basic, numbers: bool = True
) -> tuple[sympy.Basic, sympy.Basic]:
    """Both sides of an equation of positive sizes, divided by their common symbols and, with `numbers`, integers."""
    factors, others = list(sympy.Mul.make_args(left)), list(sympy.Mul.make_args(right))
    for factor in list(factors):
        if factor in others:
            factors.remove(factor)
            others.remove(factor)
    if numbers:
        shared = sympy.gcd(*(sympy.Mul(*(one for one in side if one.is_Integer)) for side in (factors, others))) or 1
        return sympy.Mul(*factors) / shared, sympy.Mul(*others) / shared
    return sympy.Mul(*factors), sympy.Mul(*others)


def _replaced(expression: sympy.Basic, env: ShapeEnv) -> sympy.Basic:
    for _ in range(len(env.replacements) + 1):
        changed = expression.xreplace(env.replacements)
        if changed == expression:
            break
        expression = changed
    return expression


def _always(condition: sympy.Basic) -> bool:
    """Whether the condition holds for all sizes of at least 1, as far as sympy can show."""
    sizes = {one: sympy.Symbol(f"{one}_", integer=True, nonnegative=True) + 1 for one in condition.free_symbols}
    try:
        return condition.subs(sizes) == sympy.true
    except (TypeError, ValueError, NotImplementedError):
        return False


def in_torch(filename: str) -> str | None:
    """The path inside torch, or None for code that is not torch's."""
    return filename[len(str(_TORCH)) + 1 :] if filename.startswith(f"{_TORCH}/") else None


def _of_model() -> bool:
    """Whether the code that reads a size is code of the model, and not the shape function of an operator."""
    frame, asked_by = sys._getframe(2), None
    while frame is not None:
        name = in_torch(frame.f_code.co_filename)
        if name is None or name.startswith(_LIBRARY):
            of_operator = asked_by is not None and asked_by.co_name in _OF_OPERATORS
            return not of_operator and frame.f_code.co_filename != __file__ and frame.f_code.co_name not in _ASSERTING
        if not name.startswith(_TRANSPARENT):
            return False
        asked_by, frame = frame.f_code, frame.f_back
    return False


def _model_frame() -> types.FrameType | None:
    """The innermost frame that is not torch's."""
    frame = sys._getframe(2)
    while frame is not None and (
        in_torch(frame.f_code.co_filename) is not None or frame.f_code.co_filename == __file__
    ):
        frame = frame.f_back
    return frame


def _cuts_padding() -> bool:
    """Whether the condition only skips a slice that has no effect then: `if pad_size > 0: y = y[:, :seq_len]`."""
    frame = _model_frame()
    if frame is None:
        return False
    lines = [linecache.getline(frame.f_code.co_filename, frame.f_lineno + i).strip() for i in range(2)]
    return lines[0] == "if pad_size > 0:" and bool(_CUT.match(lines[1]))


def _asserts() -> bool:
    """Whether the condition belongs to an assert, which is not exported."""
    frame = _model_frame()
    return frame is not None and linecache.getline(frame.f_code.co_filename, frame.f_lineno).lstrip().startswith("assert ")


_CUT = re.compile(r"(\w+) = \1\[:, :(seq_len|sequence_length)\b")


def _place() -> str:
    frame = _model_frame()
    if frame is None:
        return ""
    path = pathlib.Path(frame.f_code.co_filename)
    parts = path.parts[path.parts.index("site-packages") + 1 :] if "site-packages" in path.parts else path.parts[-1:]
    return f"{'/'.join(parts)}:{frame.f_lineno}"


# --- Module calls -----------------------------------------------------------------------------------------------------
class _Calls:
    """Records the inputs and outputs of each call of a module, as nodes of the graph under construction."""

    def __init__(self, module: torch.nn.Module, follow: bool) -> None:
        self.module = module
        self.follow = follow
        self.paths = dict(module.named_modules(remove_duplicate=False))
        self.calls: list[dict[str, Any]] = []
        self.nodes: list[torch.fx.Node] = []
        self._open: list[dict[str, Any]] = []
        self._numbers: list[tuple[torch.nn.Module, dict[str, int]]] = []
        self._counts: dict[str, int] = {}

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        hooks = []
        for path, module in self.module.named_modules():
            enter = functools.partial(self._enter, path, module, inspect.signature(module.forward))
            # Around the hooks of the model, which are part of the call in the stacks of the graph.
            hooks.append(module.register_forward_pre_hook(enter, with_kwargs=True, prepend=True))
            hooks.append(module.register_forward_hook(self._leave))
        try:
            yield
        finally:
            for module, numbers in reversed(self._numbers):
                sizes.restore(module, numbers)
            for hook in hooks:
                hook.remove()

    def _enter(
        self,
        path: str,
        module: torch.nn.Module,
        signature: inspect.Signature,
        _proxy,
        args: tuple,
        kwargs: dict[str, Any],
    ) -> None:
        if torch.compiler.is_dynamo_compiling():  # part of a higher-order operator that is refused afterwards
            return
        path = self._called_path(path, module)
        call = {"module": path, "call": self._counts.get(path, 0), "inputs": []}
        self._counts[path] = call["call"] + 1
        self.calls.append(call)
        self._open.append(call)
        self._numbers.append((module, sizes.follow_weights(module) if self.follow else {}))
        try:
            arguments = signature.bind_partial(*args, **kwargs).arguments
        except TypeError:  # a pre-hook of the model turns them into what `forward` takes
            call["inputs"] += [[f"*.{i}", self._value(one)] for i, one in enumerate(args)]
            call["inputs"] += [[key, self._value(one)] for key, one in kwargs.items()]
            return
        for name, value in arguments.items():
            parameter = signature.parameters[name]
            if parameter.kind is parameter.VAR_KEYWORD:
                call["inputs"] += [[key, self._value(one)] for key, one in value.items()]
            elif parameter.kind is parameter.VAR_POSITIONAL:
                call["inputs"] += [[f"{name}.{i}", self._value(one)] for i, one in enumerate(value)]
            else:
                call["inputs"].append([name, self._value(value)])

    def _called_path(self, first: str, module: torch.nn.Module) -> str:
        """The path that the graph's stacks have of this call; `first` is the first of the module's paths."""
        mode = proxy_tensor.get_proxy_mode()
        stack = list(getattr(mode and mode.tracer, "module_stack", {}).values())
        path = _without_root(stack[-1][0]).partition("@")[0].removeprefix("module").removeprefix(".") if stack else first
        return path if self.paths.get(path) is module else first

    def _leave(self, _module, _args, result: Any) -> None:
        if torch.compiler.is_dynamo_compiling():
            return
        self._open.pop()["outputs"] = self._value(result)
        sizes.restore(*self._numbers.pop())

    @contextlib.contextmanager
    def discarded(self) -> Iterator[None]:
        """Forgets the calls of a trace that is repeated."""
        count, counts = len(self.calls), dict(self._counts)
        try:
            yield
        finally:
            del self.calls[count:]
            self._counts = counts

    def _value(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            mode = proxy_tensor.get_proxy_mode()
            slot = mode and proxy_tensor.get_proxy_slot(value, mode.tracer, None)
            if slot is None:
                return None
            node = slot.proxy.node
            if _MARK not in node.meta:
                node.meta[_MARK] = len(self.nodes)
                self.nodes.append(node)
            return {_MARK: node.meta[_MARK]}
        if isinstance(value, Mapping):
            return {"dict": {str(key): self._value(one) for key, one in value.items() if one is not None}}
        if isinstance(value, (tuple, list)):
            return {type(value).__name__ if type(value) in (tuple, list) else "tuple": [self._value(x) for x in value]}
        return None

    def finished(self, program: ExportedProgram) -> list[dict[str, Any]]:
        """The calls with the names that the values have in the finished graph."""
        names: dict[int, str] = {}
        _find_marks(program.graph_module, names)

        def resolve(value: Any) -> Any:
            if isinstance(value, list):
                return [resolve(one) for one in value]
            if not isinstance(value, dict):
                return value
            if _MARK in value:
                name = names.get(value[_MARK])
                return name and {"value": name}
            return {key: resolve(one) for key, one in value.items()}

        return [resolve(call) for call in self.calls]


def _find_marks(graph_module: torch.fx.GraphModule, names: dict[int, str]) -> None:
    """Adds the names of marked nodes to `names`, by mark. A node of a nested graph that only sets a mode gets its name
    in the outer graph if it is a result of the nested graph. All other nodes of a nested graph get their own name, with
    the name of the nested graph as a prefix; so do the results of the branches of torch.cond."""
    for node in graph_module.graph.nodes:
        if _MARK in node.meta and node.op != "output":
            names.setdefault(node.meta[_MARK], node.name)
        if node.op != "call_function" or not isinstance(node.target, torch._ops.HigherOrderOperator):
            continue
        users = {user.args[1]: user.name for user in node.users if user.target.__name__ == "getitem"}
        for argument in node.args:
            if not (isinstance(argument, torch.fx.Node) and argument.op == "get_attr"):
                continue
            nested = getattr(graph_module, argument.target)
            inner: dict[int, str] = {}
            _find_marks(nested, inner)
            results = nested.graph.output_node().args[0]
            results = results if isinstance(results, (tuple, list)) else (results,)
            outer = {one.name: users.get(i, node.name) for i, one in enumerate(results) if isinstance(one, torch.fx.Node)}
            if node.target is _COND:
                outer = {}
            for mark, name in inner.items():
                if name in outer:
                    names[mark] = outer[name]
                else:
                    names.setdefault(mark, f"{argument.target}/{name}")


# --- Branches ---------------------------------------------------------------------------------------------------------
_COND = torch.ops.higher_order.cond


def _forwarded(pred, true_fn, false_fn, operands=()):
    return torch.ops.higher_order.cond.traced(pred, true_fn, false_fn, operands)


@contextlib.contextmanager
def _branches_in_modes() -> Iterator[None]:
    """Corrects how torch splits a graph where a mode is switched: it does not see the switch behind the names of the
    graphs of a cond, puts these names between the inputs of a part, and deletes the graphs."""
    passes = (replace_set_grad_with_hop_pass, replace_autocast_with_hop_pass)
    names = ("nodes_first", "sequential_split", "node_inline_")
    first, split, inline = (getattr(replace_set_grad_with_hop_pass, name) for name in names)

    def first_but_graphs(nodes: list[torch.fx.Node], *condition: Callable) -> torch.fx.Node | None:
        return first([node for node in nodes if node.op != "get_attr"], *condition)

    def split_and_order(graph_module: torch.fx.GraphModule, starts: Callable) -> torch.fx.GraphModule:
        made = split(graph_module, starts)
        for part in made.children():
            graph = getattr(part, "graph", torch.fx.Graph())
            inputs = graph.find_nodes(op="placeholder")
            if inputs and graph.find_nodes(op="call_function", target=_COND):
                for node in graph.find_nodes(op="get_attr"):
                    inputs[-1].append(node)
        return made

    def inline_and_keep(node: torch.fx.Node) -> torch.fx.GraphModule | None:
        _, *inside = node.graph.owning_module.modules()
        children = [dict(one._modules) for one in inside]
        made = inline(node)
        for one, before in zip(inside, children):
            one._modules.update(before)
        return made

    def replace(*functions: Callable) -> None:
        for one in passes:
            for name, function in zip(names, functions):
                setattr(one, name, function)

    replace(first_but_graphs, split_and_order, inline_and_keep)
    try:
        yield
    finally:
        replace(first, split, inline)


class _Branches:
    """Traces torch.cond. torch's own function traces the branches with dynamo, which runs no hooks of modules; here
    both branches are traced like the code around them. Tensors that a branch reads from outside become operands."""

    def __init__(self, calls: _Calls) -> None:
        self.given: list[torch.Tensor] = []  # inputs and parameters: between them, they have all symbolic sizes
        self._calls = calls

    @contextlib.contextmanager
    def tracing(self) -> Iterator[None]:
        # The code of the function is replaced, so that it does not matter how a model imported it.
        before, torch.cond.__code__ = torch.cond.__code__, _forwarded.__code__
        _COND.traced = self._cond
        try:
            with _branches_in_modes():
                yield
        finally:
            torch.cond.__code__ = before
            del _COND.traced

    def _cond(self, pred: Any, true_fn: Callable, false_fn: Callable, operands: tuple | list = ()) -> Any:
        mode = proxy_tensor.get_proxy_mode()
        if mode is None or not isinstance(pred, (torch.Tensor, torch.SymBool)):
            return (true_fn if pred else false_fn)(*operands)
        place = _place()

        def refuse(what: str) -> None:
            raise ExportError(f"torch.cond {what}; it is called at {place}")

        if isinstance(pred, torch.Tensor) and (pred.numel() != 1 or pred.dtype != torch.bool):
            refuse(f"requires a bool or a bool tensor of one element as predicate, not {dtype_name(pred.dtype)}"
                         f"{list(pred.shape)}")  # fmt: skip
        own, spec = pytree.tree_flatten(tuple(operands))
        if not all(isinstance(one, torch.Tensor) for one in own):
            refuse("requires operands that are tensors; numbers and other values belong into the closures")
        known = {id(one) for one in own}
        lifted = [one for one in self.given if one in mode.tracer.tensor_tracker and id(one) not in known]
        results: list[tuple[Any, list[torch.Tensor | int]]] = []  # structure and leaves, of each trace of a branch

        def branch(function: Callable, tensors: list[torch.Tensor], final: bool) -> Callable:
            def traced(*args):
                inner = proxy_tensor.get_proxy_mode().tracer
                for outside, inside in zip(tensors, args[len(own) :]):
                    inner.tensor_tracker[outside] = inner.tensor_tracker[inside]
                inner.module_stack = mode.tracer.module_stack.copy()
                inner.num_calls = mode.tracer.num_calls if final else dict(mode.tracer.num_calls)
                for name in ("proxy_paths", "proxy_modules", "attr_proxy_map"):
                    setattr(inner, name, getattr(mode.tracer, name))
                found, how = pytree.tree_flatten(function(*pytree.tree_unflatten(args[: len(own)], spec)))
                if not all(isinstance(one, torch.Tensor) or type(one) is int for one in found):
                    refuse("has a branch that returns a value that is neither a tensor nor a constant integer")
                results.append((how, found))
                return tuple(found)

            return traced

        # The first trace finds the tensors that a branch reads from outside: they are constants of its graph.
        for function in (true_fn, false_fn):
            with self._calls.discarded(), without_function_mode(), proxy_tensor.disable_proxy_modes_tracing():
                graph = reenter_make_fx(branch(function, lifted, final=False))(*own, *lifted)
            for node in graph.graph.find_nodes(op="get_attr"):
                tensor = getattr(graph, node.target)
                if not isinstance(tensor, torch.Tensor):
                    continue
                if tensor not in mode.tracer.tensor_tracker:
                    refuse("has a branch with a tensor of constant values; make it a buffer, or outside of the branch")
                if id(tensor) not in known and not any(tensor is one for one in lifted):
                    lifted.append(tensor)
        if not _same_results(*results):
            texts = [", ".join(str(one) if type(one) is int else f"{dtype_name(one.dtype)}{list(one.shape)}" for one in found)
                     or "nothing" for _, found in results]  # fmt: skip
            if texts[0] == texts[1]:
                texts = [str(how) for how, _ in results]
            refuse(f"has branches with different results: {texts[0]} if true, {texts[1]} if false")
        branches = [branch(one, lifted, final=True) for one in (true_fn, false_fn)]
        try:
            with without_function_mode():
                found = _COND(pred, *branches, (*own, *lifted))
        except RuntimeError as error:  # a branch that writes, or results with other strides
            refuse(f"cannot be traced: {str(error).strip().splitlines()[0]}")
        return pytree.tree_unflatten(found, results[0][0])


def _same_results(a: tuple[Any, list[torch.Tensor | int]], b: tuple[Any, list[torch.Tensor | int]]) -> bool:
    """Whether the results have the same structure, dtypes and sizes, and are the same integers. Symbolic sizes that are
    equal in the example are equal from here on."""
    if a[0] != b[0]:
        return False
    for one, other in zip(a[1], b[1]):
        if type(one) is int or type(other) is int:
            if type(one) is not type(other) or one != other:
                return False
            continue
        if one.dtype != other.dtype or one.dim() != other.dim():
            return False
        for size, same in zip(one.shape, other.shape):
            if to_json(size) == to_json(same):
                continue
            if any(isinstance(x, torch.SymInt) and x.node.hint is None for x in (size, same)) or not size == same:
                return False
    return True


def nested_graphs(graph_module: torch.fx.GraphModule, node: torch.fx.Node) -> list[torch.fx.GraphModule]:
    """The graphs among the arguments of a higher-order operator."""
    found = [getattr(graph_module, str(one.target), None) for one in node.args
             if isinstance(one, torch.fx.Node) and one.op == "get_attr"]  # fmt: skip
    return [one for one in found if isinstance(one, torch.fx.GraphModule)]


def _drop_unused_operands(graph_module: torch.fx.GraphModule) -> None:
    """Drops the operands of torch.cond that neither branch reads."""
    for node in graph_module.graph.find_nodes(op="call_function", target=_COND):
        branches = nested_graphs(graph_module, node)
        for one in branches:
            _drop_unused_operands(one)
        inputs = [one.graph.find_nodes(op="placeholder") for one in branches]
        kept = [i for i, pair in enumerate(zip(*inputs)) if any(one.users for one in pair)]
        for branch, placeholders in zip(branches, inputs):
            for i, placeholder in enumerate(placeholders):
                if i not in kept:
                    branch.graph.erase_node(placeholder)
            branch.recompile()
        node.update_arg(3, tuple(node.args[3][i] for i in kept))


# --- Tracing ----------------------------------------------------------------------------------------------------------
class _Whole(torch.nn.Module):
    """The module as a function of its inputs and its parameters, which returns a flat tuple of its results."""

    def __init__(
        self,
        module: torch.nn.Module,
        fixed: Mapping[str, Any],
        conditions: _Conditions,
        outputs: list[str],
        assigned: list[tuple[str, str]],
        branches: _Branches,
    ) -> None:
        super().__init__()
        self.module = module
        self._give = lambda tensors: branches.given.__setitem__(slice(None), tensors)
        self._assigned = lambda found: assigned.__setitem__(slice(None), found)
        self._arguments = functools.partial(_arguments, inspect.signature(module.forward), fixed)
        self._outputs = lambda names: outputs.__setitem__(slice(None), names)  # torch.export resets attributes
        self._conditions = conditions

    def forward(self, inputs: dict[str, Any], parameters: dict[str, torch.Tensor]) -> tuple:
        args, kwargs = self._arguments(inputs)
        before = _attributes(self.module)
        self._give([one for one in pytree.tree_leaves((inputs, parameters)) if isinstance(one, torch.Tensor)])
        self._conditions.active = True
        try:
            result = torch.func.functional_call(self.module, parameters, args, kwargs)
        finally:
            self._conditions.active = False
        self._assigned(_changed(before, _attributes(self.module)))
        named = dict(_named_results(result))
        self._outputs(list(named))
        given = {id(leaf) for leaf in pytree.tree_leaves((inputs, parameters))}
        # torch.export refuses a result that is an input.
        return tuple(torch.ops.aten.alias(one) if id(one) in given else one for one in named.values())


def _attributes(module: torch.nn.Module) -> dict[tuple[str, str], Any]:
    """Buffers, by identity, and attributes that are numbers or strings."""
    found: dict[tuple[str, str], Any] = {}
    for path, one in module.named_modules():
        prefix = f"{path}." if path else ""
        found |= {("buffer", prefix + name): id(value) for name, value in one._buffers.items() if value is not None}
        found |= {("attribute", prefix + name): value for name, value in vars(one).items()
                  if name != "training" and type(value) in (bool, int, float, str)}  # fmt: skip
    return found


def _changed(before: Mapping[tuple[str, str], Any], after: Mapping[tuple[str, str], Any]) -> list[tuple[str, str]]:
    return [key for key, value in before.items() if key in after and after[key] != value]


def _arguments(signature: inspect.Signature, fixed: Mapping[str, Any], inputs: dict[str, Any]) -> tuple[tuple, dict]:
    values, args = {**fixed, **inputs}, []
    for name, parameter in signature.parameters.items():
        if parameter.kind is parameter.POSITIONAL_ONLY and name in values:
            args.append(values.pop(name))
        elif parameter.kind is parameter.VAR_POSITIONAL:
            args += values.pop(name, ())
    return tuple(args), values


def _named_results(result: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Tensors and numbers of a result by name: fields of mappings, positions in sequences."""
    if isinstance(result, Mapping):
        items = result.items()
    elif isinstance(result, (tuple, list)):
        items = enumerate(result)
    else:
        if isinstance(result, (torch.Tensor, torch.SymInt, torch.SymFloat)):
            yield name or "output", result
        return
    prefix = f"{name}." if name else "" if isinstance(result, Mapping) else "output."
    for key, value in items:
        yield from _named_results(value, f"{prefix}{key}")


def trace(
    module: torch.nn.Module,
    inputs: dict[str, Any],
    dynamic_shapes: dict[str, Any],
    cut: dict[str, set[int]],
    fixed: Mapping[str, Any],
    follow: bool = True,
) -> Trace:
    """Traces `module(**inputs, **fixed)`, with positional arguments where its signature has them.

    `dynamic_shapes` is as in torch.export, by input; `cut` names the symbolic dims of parameters. Tracing is
    non-strict: numbers that Python computes from configs are constants, and a dim that must equal such a number becomes
    an integer. With `follow`, attributes that have a rule in sizes.py are expressions of weight dims, not constants.
    """
    conditions, calls, outputs, assigned = _Conditions(), _Calls(module, follow), [], []
    branches = _Branches(calls)
    whole = _Whole(module, fixed, conditions, outputs, assigned, branches)
    parameters = dict(module.named_parameters())
    dims = {name: {dim: Dim.AUTO for dim in cut[name]} or None if name in cut else None for name in parameters}
    shapes = {name: dynamic_shapes.get(name) for name in inputs}
    whole.train(module.training)
    with conditions.recording(), calls.recording(), branches.tracing():
        program = torch.export.export(whole, (inputs, parameters), strict=False,
                                      dynamic_shapes={"inputs": shapes, "parameters": dims})  # fmt: skip
    _refuse_operators(program)
    _drop_unused_operands(program.graph_module)
    _restore_parameters(program, parameters)
    _strip_prefix(program, "module")
    _rename_inputs(program, inputs)
    _recall(program, inputs)
    _replace_operators(program)
    _remove_assertions(program)
    env = _shape_env(program)
    found = conditions.finished(program, env) if env else []
    return Trace(program, outputs, calls.finished(program), found, _symbols(program, env, found, inputs),
                 sorted(conditions.functions), assigned)  # fmt: skip


class ExportError(ValueError):
    """The model cannot be exported as it is: where, and why."""


_MODES = ("wrap_with_set_grad_enabled", "wrap_with_autocast")


def _refuse_operators(program: ExportedProgram) -> None:
    """Higher-order operators other than those that only switch a mode, and branches: loops, custom kernels, vmap."""
    for graph_module in program.graph_module.modules():
        for node in getattr(graph_module, "graph", torch.fx.Graph()).nodes:
            operation = node.target
            if isinstance(operation, torch._ops.HigherOrderOperator):
                name = operation.name()
            else:
                name = "vmap" if getattr(operation, "__module__", "") == "torch._functorch.predispatch" else ""
            if name in ("", *_MODES, _COND.name()):
                continue
            path, kind = [("", ""), *node.meta.get("nn_module_stack", {}).values()][-1]
            path = _without_root(path).partition("@")[0].removeprefix("module").removeprefix(".")
            place = f"module '{path}' ({kind})" if path else f"the model's own forward {kind}".strip()
            lines = re.findall(r'File "([^"]+)", line (\d+)', node.meta.get("stack_trace") or "")
            # torch runs the graph of a loop as generated code, "<eval_with_key>.5".
            line = next((f", {file}:{line}" for file, line in reversed(lines) if not in_torch(file) and file[0] != "<"), "")
            raise ExportError(f"the higher-order operator torch.{name} is not supported; it is called in {place}{line}")


def _shape_env(program: ExportedProgram) -> ShapeEnv | None:
    for node in program.graph.nodes:
        for size in getattr(node.meta.get("val"), "shape", ()):
            if isinstance(size, torch.SymInt):
                return size.node.shape_env
    return None


def _restore_parameters(program: ExportedProgram, parameters: dict[str, torch.Tensor]) -> None:
    """Turns the inputs that replaced parameters back into parameters; the module's own placeholders are removed."""
    signature = program.graph_signature
    nodes = {node.name: node for node in program.graph.nodes if node.op == "placeholder"}
    inputs = [spec for spec in signature.input_specs if spec.kind == InputKind.USER_INPUT]
    given = inputs[len(inputs) - len(parameters) :]
    names = {}
    for spec, name in zip(given, parameters, strict=True):
        spec.kind, spec.target = InputKind.PARAMETER, f"module.{name}"
        names[spec.target] = nodes[spec.arg.name]
    for spec in [s for s in signature.input_specs if s.kind == InputKind.PARAMETER and s not in given]:
        node = nodes[spec.arg.name]
        if spec.target in names:
            node.replace_all_uses_with(names[spec.target])
        if not node.users:
            program.graph.erase_node(node)
            signature.input_specs.remove(spec)
    for spec in list(given):
        if not nodes[spec.arg.name].users:
            program.graph.erase_node(nodes[spec.arg.name])
            signature.input_specs.remove(spec)
    order = [InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR, InputKind.CUSTOM_OBJ, InputKind.TOKEN,
             InputKind.USER_INPUT]  # fmt: skip
    signature.input_specs.sort(key=lambda spec: order.index(spec.kind))
    first = next(iter(program.graph.nodes))
    for spec in signature.input_specs:
        node = nodes[spec.arg.name]
        if node is first:
            first = first.next
        else:
            first.prepend(node)
    for spec, name in zip(given, parameters, strict=True):
        if spec in signature.input_specs:
            _rename(nodes[spec.arg.name], "p_" + name.replace(".", "_"), spec)


def _rename(node: torch.fx.Node, name: str, spec: Any) -> None:
    node._rename(name)
    node.target = node.name
    spec.arg.name = node.name


def _strip_prefix(program: ExportedProgram, prefix: str) -> None:
    def short(name: str) -> str:
        return "" if name == prefix else name.removeprefix(f"{prefix}.")

    signature = program.graph_signature
    for spec in [*signature.input_specs, *signature.output_specs]:
        spec.target = spec.target and short(spec.target)
    for table in (program.state_dict, program.constants):
        for name in list(table):
            table[short(name)] = table.pop(name)
    for graph_module in program.graph_module.modules():
        for node in getattr(graph_module, "graph", torch.fx.Graph()).nodes:
            stack = node.meta.get("nn_module_stack", {})
            stack = {key: (_without_root(path), kind) for key, (path, kind) in stack.items()}
            node.meta["nn_module_stack"] = {
                f"{short(path)}@{key.partition('@')[2] or 0}": (short(path.partition("@")[0]), kind)
                for key, (path, kind) in stack.items() if path
            }  # fmt: skip
            if lines := (node.meta.get("stack_trace") or "").strip().splitlines():
                node.meta["stack_trace"] = "\n".join(lines[-2:])
    _fill_stacks(program.graph_module, {})
    nodes = {node.name: node for node in program.graph.nodes if node.op == "placeholder"}
    for spec in signature.input_specs:
        if spec.kind in (InputKind.BUFFER, InputKind.CONSTANT_TENSOR):
            letter = "b_" if spec.kind == InputKind.BUFFER else "c_"
            _rename(nodes[spec.arg.name], letter + spec.target.replace(".", "_"), spec)


def _without_root(path: str) -> str:
    """The path without the name of torch.export's own root module, which torch removes in the outermost graph only."""
    return "" if path == "_export_root" else path.removeprefix("_export_root.")


def _fill_stacks(graph_module: torch.fx.GraphModule, around: Any) -> None:
    """Nodes of a nested graph without a module stack get the stack of the node that runs the nested graph."""
    for node in graph_module.graph.nodes:
        if node.op != "call_function":
            continue
        stack = node.meta.get("nn_module_stack")
        if not stack and around and isinstance(node.meta.get("val"), torch.Tensor):
            node.meta["nn_module_stack"] = around
        for argument in node.args:
            if isinstance(argument, torch.fx.Node) and argument.op == "get_attr":
                nested = getattr(graph_module, str(argument.target), None)
                if isinstance(nested, torch.fx.GraphModule):
                    _fill_stacks(nested, stack)


def _rename_inputs(program: ExportedProgram, inputs: dict[str, Any]) -> None:
    nodes = {node.name: node for node in program.graph.nodes if node.op == "placeholder"}
    specs = [spec for spec in program.graph_signature.input_specs if spec.kind == InputKind.USER_INPUT]
    for spec, name in zip(specs, input_names(inputs), strict=True):
        if spec.arg.name in nodes:
            _rename(nodes[spec.arg.name], name.replace(".", "_"), spec)


def input_names(inputs: dict[str, Any]) -> list[str]:
    """Names of the leaves of nested inputs: `x`, `x.0`, `x.key`."""
    leaves, _ = pytree.tree_flatten_with_path(inputs)
    return [".".join(str(getattr(key, "key", getattr(key, "idx", key))) for key in path) for path, _ in leaves]


def _recall(program: ExportedProgram, inputs: dict[str, Any]) -> None:
    """Makes the program callable from Python by the names of its inputs and with any sizes, without torch's guards."""
    root = program.module_call_graph[0]
    specs = program.graph_signature.input_specs
    root.signature.inputs = [spec.arg for spec in specs if spec.kind == InputKind.USER_INPUT]
    root.signature.in_spec = pytree.tree_flatten(((), inputs))[1]
    root.signature.forward_arg_names = list(inputs)
    program.example_inputs = ((), inputs)
    del program.module_call_graph[1:]
    program._guards_code = []
    for symbol, limits in program.range_constraints.items():
        program.range_constraints[symbol] = type(limits)(1, limits.upper)
    program.graph_module.recompile()


def _replace_operators(program: ExportedProgram) -> None:
    """Replaces operators that transformers defines in Python by PyTorch's operators that compute the same."""
    for graph_module in program.graph_module.modules():
        for node in getattr(graph_module, "graph", torch.fx.Graph()).nodes:
            if isinstance(node.target, torch._ops.OpOverload):
                node.target = _OWN.get(node.target._schema.name, node.target)


def _remove_assertions(program: ExportedProgram) -> None:
    """Removes what torch asserts about sizes that depend on values, with the nodes that compute only these assertions.
    Operators check the sizes of their operands, and torch asserts more than they need: that no such size is 1."""
    for graph_module in program.graph_module.modules():
        graph = getattr(graph_module, "graph", None)
        only_asserted: set[torch.fx.Node] = set()
        found = graph is not None
        while found:
            found = [node for node in reversed(graph.nodes) if not node.users and (
                node.target is torch.ops.aten._assert_scalar.default or node in only_asserted
                or node.target is operator.getitem and node.args[0] in only_asserted)]  # fmt: skip
            for node in found:
                only_asserted.update(one for one in node.all_input_nodes if _is_pure(one))
                graph.erase_node(node)


def _is_pure(node: torch.fx.Node) -> bool:
    return node.op == "call_function" and not (isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable)


_OWN = {"transformers::grouped_mm_fallback": torch.ops.aten._grouped_mm.default}


def _symbols(
    program: ExportedProgram, env: ShapeEnv | None, guards: list[dict[str, Any]], inputs: dict[str, Any]
) -> dict[str, dict[str, Any]]:
    """The source of each symbol: the first dim of an input, else of a tensor, that equals the symbol."""
    found: dict[str, dict[str, Any]] = {}
    nodes = {node.name: node for node in program.graph.nodes if node.op == "placeholder"}
    specs = program.graph_signature.input_specs
    user = [spec.arg.name for spec in specs if spec.kind == InputKind.USER_INPUT]
    names = dict(zip(user, input_names(inputs), strict=True))
    for spec in sorted(specs, key=lambda spec: spec.kind != InputKind.USER_INPUT):
        value = getattr(nodes.get(spec.arg.name), "meta", {}).get("val")
        own = {"tensor": spec.target} if spec.kind != InputKind.USER_INPUT else {"input": names[spec.arg.name]}
        if isinstance(value, torch.SymInt) and isinstance(to_json(value), str):
            found.setdefault(to_json(value), {**own, "dim": None, "example": value.node.hint})
        for dim, size in enumerate(getattr(value, "shape", ())):
            if isinstance(size, torch.SymInt) and isinstance(to_json(size), str):
                found.setdefault(to_json(size), {**own, "dim": dim, "example": size.node.hint})
    used = set().union(*(symbols_in(guard["condition"]) for guard in guards))
    for graph_module in program.graph_module.modules():
        for node in getattr(graph_module, "graph", torch.fx.Graph()).nodes:
            for value in pytree.tree_leaves(node.meta.get("val")):
                for size in getattr(value, "shape", ()):
                    if isinstance(size, torch.SymInt):
                        used |= symbols_in(to_json(size))
    for name in sorted(used - set(found)):
        found[name] = {"data": True}
    return found
