"""What parameters and persistent buffers start as, read off the operators by which a module fills them.

The module's own initialisation runs on tensors without values, so it costs no memory.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten
_SMALL = 4096  # elements


def initial_values(module: torch.nn.Module, initialise: Callable[[str, torch.nn.Module], None]) -> dict[str, Any]:
    """By name of a parameter or persistent buffer: `{"constant": 1.0}`, `{"normal": [mean, deviation]}`, `{"uniform": [low, high]}`, or
    `{"values": [...]}` of a small tensor that is computed.

    `initialise` fills the tensors of a module, of which it is given the path too; it is called for each module, parents
    last. A tensor that it does not fill, or by large values that it computes, is not in the result.
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
            except Exception:  # an initialisation that looks at values
                continue
            found |= {names[key]: value for key, value in recorder.found.items() if key in names and value}
    return found


def persistent_buffers(module: torch.nn.Module) -> list[tuple[str, torch.Tensor]]:
    """The buffers that checkpoints hold, by name."""
    return [(f"{path}.{name}" if path else name, buffer) for path, one in module.named_modules()
            for name, buffer in one.named_buffers(recurse=False) if name not in one._non_persistent_buffers_set]  # fmt: skip


def buffer_values(module: torch.nn.Module) -> dict[str, Any]:
    """The values that persistent buffers have now, as `initial_values` has them, but for buffers without values and for
    large ones with different elements."""
    found: dict[str, Any] = {}
    for name, buffer in persistent_buffers(module):
        if isinstance(buffer, FakeTensor) or buffer.is_meta or buffer.is_complex() or buffer.numel() == 0:
            continue
        values = buffer.detach().double().flatten()
        if not bool(values.isfinite().all()):  # JSON has no such number
            continue
        if bool((values == values[0]).all()):
            found[name] = {"constant": values[0].item()}
        elif values.numel() <= _SMALL:
            found[name] = {"values": values.tolist()}
    return found


def reset(_path: str, module: torch.nn.Module) -> None:
    """As the modules of torch.nn fill their parameters."""
    if hasattr(module, "reset_parameters"):
        module.reset_parameters()
    elif hasattr(module, "_reset_parameters"):
        module._reset_parameters()


class _Recorder(TorchDispatchMode):
    """The last operator that filled each tensor; None for one that computes."""

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
