"""Initial values of parameters and persistent buffers, derived from the operators by which a module initializes them.

The module's own initialization runs on tensors without values, so it needs no memory.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten
_SMALL = 4096  # elements


def initial_values(module: torch.nn.Module, initialise: Callable[[str, torch.nn.Module], None]) -> dict[str, Any]:
    """Returns, by name of a parameter or persistent buffer, `{"constant": 1.0}`, `{"normal": [mean, deviation]}`,
    `{"uniform": [low, high]}`, or `{"values": [...]}` for a small tensor whose values are computed.

    `initialise(path, module)` sets the tensors of one module; it is called for each module, parents last. The result
    has no entry for a tensor that `initialise` does not set, or for a large tensor whose values are computed.
    """
    found: dict[str, Any] = {}
    names = {id(tensor): name for name, tensor in [*module.named_parameters(), *persistent_buffers(module)]}
    with torch.no_grad(), torch.random.fork_rng([]):
        torch.manual_seed(0)
        for path, one in reversed(list(module.named_modules())):
            recorder = _Recorder()
            try:
                with recorder:
                    initialise(path, one)
            except Exception:  # an initialization that reads values
                continue
            found |= {names[key]: value for key, value in recorder.found.items() if key in names and value}
    return found


def persistent_buffers(module: torch.nn.Module) -> list[tuple[str, torch.Tensor]]:
    """The buffers that checkpoints contain, with their names."""
    return [(f"{path}.{name}" if path else name, buffer) for path, one in module.named_modules()
            for name, buffer in one.named_buffers(recurse=False) if name not in one._non_persistent_buffers_set]  # fmt: skip


def buffer_values(module: torch.nn.Module) -> dict[str, Any]:
    """The current values of persistent buffers, in the form of `initial_values`. Buffers without values, and large
    buffers with different elements, are not in the result."""
    found: dict[str, Any] = {}
    for name, buffer in persistent_buffers(module):
        if isinstance(buffer, FakeTensor) or buffer.is_meta or buffer.is_complex() or buffer.numel() == 0:
            continue
        values = buffer.detach().double().flatten()
        if not bool(values.isfinite().all()):  # JSON has no infinity and no NaN
            continue
        if bool((values == values[0]).all()):
            found[name] = {"constant": values[0].item()}
        elif values.numel() <= _SMALL:
            found[name] = {"values": values.tolist()}
    return found


def reset(_path: str, module: torch.nn.Module) -> None:
    """Initializes the parameters of a module as torch.nn does."""
    if hasattr(module, "reset_parameters"):
        module.reset_parameters()
    elif hasattr(module, "_reset_parameters"):
        module._reset_parameters()


class _Recorder(TorchDispatchMode):
    """Records the initial value by the last operator that wrote each tensor; None for any other operator."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[int, dict[str, Any] | None] = {}

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        result = operator(*args, **kwargs)
        if operator._schema.arguments and operator._schema.arguments[0].is_write and isinstance(args[0], torch.Tensor):
            self.found[id(args[0])] = _filled(operator.overloadpacket, args[1:], kwargs)
        return result


def _filled(operator: Any, args: tuple, kwargs: dict[str, Any]) -> dict[str, Any] | None:
    if operator is aten.zero_:
        return {"constant": 0.0}
    if operator is aten.fill_ and isinstance(args[0], (int, float)):
        return {"constant": float(args[0])}
    if operator is aten.copy_ and not isinstance(args[0], FakeTensor) and args[0].numel() <= _SMALL:
        return {"values": args[0].double().flatten().tolist()}
    names = {aten.normal_: ("normal", "mean", 0.0, "std", 1.0), aten.uniform_: ("uniform", "from", 0.0, "to", 1.0)}
    if operator not in names:
        return None
    what, first, default, second, other = names[operator]
    numbers = [*args, *([kwargs.get(first, default)] if not args else []),
               *([kwargs.get(second, other)] if len(args) < 2 else [])]  # fmt: skip
    return {what: [float(number) for number in numbers[:2]]}
