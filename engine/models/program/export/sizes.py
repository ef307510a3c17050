"""Replaces attributes of transformers' modules that are sizes of the config by sizes of weights while tracing.

`self.num_heads` in a reshape would be a constant of the graph, but a rank with a shard has fewer heads. While the
forward of a module is traced with symbolic dims of weights, such an attribute is replaced by an expression of weight
dims, so that the graph computes it. A rule applies only if its value equals the attribute of the module.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch


def _size(module: Any, path: str, dim: int) -> Any:
    for name in path.split("."):
        module = getattr(module, name)
    return module.shape[dim]


def _heads(*paths: str, dim: int = 0, parts: int = 1) -> list[Callable[[Any], Any]]:
    return [lambda m, path=path: _size(m, path, dim) // (parts * m.head_dim) for path in paths]


def _sizes(*paths: str, dim: int = 0) -> list[Callable[[Any], Any]]:
    return [lambda m, path=path: _size(m, path, dim) for path in paths]


def _rows_of_keys(m: Any) -> Any:
    """Rows of the key projection: of `k_proj`, or of the key part of a fused `qkv_proj` before `o_proj`."""
    if hasattr(m, "qkv_proj"):
        return (_size(m, "qkv_proj.weight", 0) - _size(m, "o_proj.weight", 1)) // 2
    return _size(m, "k_proj.weight", 0)


# The number of query heads per key head. The rows of the query projection include the rows of a gate, if there is one;
# the columns of the output projection do not.
_GROUPS = [lambda m: _size(m, "q_proj.weight", 0) // _rows_of_keys(m), lambda m: _size(m, "o_proj.weight", 1) // _rows_of_keys(m)]
_HEADS = [*_sizes("dt_bias"), *_heads("q_proj.weight", "q_b_proj.weight", "query.weight", "wq.weight", "q_lin.weight"),
          lambda m: _size(m, "q.weight", 0) // m.key_value_proj_dim, *_heads("c_proj.weight"),
          *_heads("query_key_value.weight", "Wqkv.weight", "W_pack.weight", "qkv.weight", parts=3)]  # fmt: skip
_WIDTH = [*_sizes("out_proj.weight", dim=1), *_sizes("c_proj.weight"), *_sizes("o_proj.weight", "dense.weight", dim=1)]
# Attributes and the expressions that may compute them. A later attribute may use an earlier one.
RULES: list[tuple[str, list[Callable[[Any], Any]]]] = [
    ("nf", _sizes("weight", dim=1)),
    ("num_heads", _HEADS), ("n_heads", _HEADS), ("num_attention_heads", _HEADS), ("n_head", _HEADS),
    ("num_key_value_heads", [*_heads("k_proj.weight", "key.weight"), lambda m: _rows_of_keys(m) // m.head_dim]),
    ("num_kv_heads", _heads("k_proj.weight")), ("num_key_value_groups", _GROUPS),
    ("inner_dim", _sizes("q.weight")), ("embed_dim", _WIDTH), ("split_size", _WIDTH), ("all_head_size", _sizes("query.weight")),
    # State-space and linear-attention mixers.
    ("intermediate_size", _sizes("out_proj.weight", dim=1)),
    ("conv_dim", _sizes("conv1d.weight")),
    ("n_groups", [lambda m: (m.conv_dim - m.intermediate_size) // (2 * m.ssm_state_size)]),
    ("num_v_heads", _sizes("A_log")), ("value_dim", _sizes("out_proj.weight", dim=1)),
    ("key_dim", [lambda m: (m.conv_dim - m.value_dim) // 2]),
    ("num_k_heads", [lambda m: m.key_dim // m.head_k_dim]),
    ("groups", [lambda m: _size(m, "weight", 0) if m.in_channels == m.groups == m.out_channels else None]),
]  # fmt: skip


# Numbers that a module reads from its config while it runs.
CONFIG_RULES: list[tuple[str, list[Callable[[Any], Any]]]] = [
    ("num_attention_heads", [lambda m: m.qkv_proj and _size(m, "o_proj.weight", 1) // m.head_dim]),
]


class _ConfigOf:
    """A config with some numbers replaced."""

    def __init__(self, config: Any, numbers: dict[str, Any]) -> None:
        self._config, self._numbers = config, numbers

    def __getattr__(self, name: str) -> Any:
        return self._numbers[name] if name in self._numbers else getattr(self._config, name)


def follow_weights(module: torch.nn.Module) -> dict[str, Any]:
    """Replaces attributes of a module by sizes of its weights; returns the replaced attributes, for `restore`."""
    before: dict[str, Any] = {}
    for name, ways in RULES:
        number = module.__dict__.get(name)
        # With one query head per key head no rank repeats key heads: the number 1 stays, for code that tests for it.
        if type(number) is not int or (name == "num_key_value_groups" and number == 1):
            continue
        size = _followed(module, ways, number)
        if size is not None:
            before[name] = number
            module.__dict__[name] = size
    config = module.__dict__.get("config")
    numbers = {name: _followed(module, ways, getattr(config, name, None)) for name, ways in CONFIG_RULES}
    numbers = {name: size for name, size in numbers.items() if size is not None}
    if numbers:
        before["config"] = config
        module.__dict__["config"] = _ConfigOf(config, numbers)
    return before


def restore(module: torch.nn.Module, before: dict[str, Any]) -> None:
    module.__dict__.update(before)


def _followed(module: Any, ways: list[Callable[[Any], Any]], number: Any) -> torch.SymInt | None:
    for size in _values(module, ways):
        if isinstance(size, torch.SymInt) and size.node.hint == number:
            return size
    return None


def _values(module: torch.nn.Module, ways: list[Callable[[Any], Any]]) -> Iterator[Any]:
    for way in ways:
        try:
            yield way(module)
        except (AttributeError, IndexError):
            continue
