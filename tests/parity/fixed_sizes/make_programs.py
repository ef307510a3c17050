#!/usr/bin/env python3
"""Writes small programs whose graphs hold sizes in many ways: integers, symbols, values (fixed_sizes_test.cc).

    make_programs.py [NAME...]    needs torch 2.11; writes NAME.pt2 with weights beside this file, without names all of them

Each takes x [2, 6, 8]. `q` and `k` (8 -> 16), `fused` (8 -> 32) and `gate` (8 -> 1) are colwise in the test's plan, `few` (8 ->
16) is in two heads, `out`, `keeping` and `own` (16 -> 8) and the output projection of `heads` are rowwise, `replicated` is not
sharded.
"""

import json
import math
import pathlib
import re
import sys
import zipfile

import torch
import torch.nn.functional as F

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[2] / "engine/models/program/export"))

from export_program import export  # noqa: E402


class Keeping(torch.nn.Linear):
    """Gives a value to its caller besides the one that it returns."""

    def forward(self, x, kept):
        made = super().forward(x)
        kept.append(made * 2)
        return made


class Own(torch.nn.Linear):
    """Uses its weight and bias as the caller says."""

    def forward(self, x, body):
        return body(x, self.weight, self.bias)


class Base(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.q = torch.nn.Linear(8, 16)
        self.k = torch.nn.Linear(8, 16)
        self.fused = torch.nn.Linear(8, 32)
        self.conv = torch.nn.Conv1d(16, 16, 3, padding=1, groups=16)
        self.out = torch.nn.Linear(16, 8)
        self.gate = torch.nn.Linear(8, 1)
        self.keeping = Keeping(16, 8)
        self.keeping.bias = None
        self.heads = torch.nn.MultiheadAttention(8, 2, batch_first=True)
        self.replicated = torch.nn.MultiheadAttention(8, 2, batch_first=True)
        self.own = Own(16, 8)
        self.few = torch.nn.Linear(8, 16)
        self.norm = torch.nn.BatchNorm1d(16).eval()
        self.slopes = torch.nn.PReLU(16)


def last(x):
    return (x * torch.arange(32.0)).cumsum(-1)[..., -1:]


def written_sibling(p):
    z = torch.zeros(2, 6, 8)
    first, more = z[:, :3], z[:, :5]
    first.add_(p[:, :3])
    return p + F.pad(more.relu(), (0, 0, 0, 1))


def written_base(p):
    z = torch.zeros(2, 6, 8)
    first, more = z[:, :3], z[:, :4]
    first.add_(1.0)
    return p[:, :4] + more


def filled_base(p):
    z = torch.zeros(2, 6, 8)
    view = z.view(2, 6, 8)
    z.fill_(1.0)
    return p + view


def cumulated(h):
    h[:, :3].cumsum_(-1)
    return h


def masked_scores(q, k):
    mask = torch.ones(6, 6, dtype=torch.bool).triu(1)
    return torch.tensordot(q, k, dims=([-1], [-1])).masked_fill(mask, torch.finfo(torch.float32).min).softmax(-1)


def chosen_experts(m, x):
    """Each of two experts computes the rows that are chosen for it."""
    rows = x.flatten(0, 1)
    made = torch.zeros_like(rows)
    for chosen in (rows[:, 0] > 0, rows[:, 0] <= 0):
        (at,) = torch.where(chosen)
        made = made.index_add(0, at, m.out(F.silu(m.q(rows[at]))))
    return made.view_as(x)


def negative_in_place(z):
    z[z < 0] = z[z < 0] * 0.1
    return z


def one_key_head(q, k):
    q = q.view(*q.shape[:2], -1, 4).transpose(1, 2)
    k = k[:, None].expand(-1, q.shape[1], -1, -1)
    return F.scaled_dot_product_attention(q, k, k).transpose(1, 2).flatten(2)


def cached(k):
    cache = k.new_zeros(k.shape[0], 9, 4)
    cache[:, 3:] = k
    return cache


def times_in_place(q, factor):
    q.view(*q.shape[:2], -1, 4).mul_(factor[:, :, None])
    return q


def chosen_view(h):
    return h.view(h.shape[0], -1, 4).softmax(-1).flatten(1)


def unrecorded(h):
    with torch.no_grad():
        h.mul_(2)
    return h


def two_parts(q, out, full, key):
    return out(one_key_head(q, key[..., :4])) + full


@torch.no_grad()
def given_result(h, compute):
    y = torch.zeros_like(h)
    compute(h, y.view(*h.shape))
    return y


def heads(x, n):
    return x.view(*x.shape[:2], n, -1)


def attention(q, k, repeats, scale=None):
    q, k = (t.transpose(1, 2) for t in (q.view(*q.shape[:2], -1, 4), k.view(*k.shape[:2], -1, 4)))
    k = k[:, :, None].expand(-1, -1, repeats, -1, -1).reshape(k.shape[0], -1, *k.shape[2:])
    return F.scaled_dot_product_attention(q, k, k, scale=scale).transpose(1, 2).reshape(q.shape[0], q.shape[2], -1)


def grouped(q, k, how):
    """Two query heads for each key head; the numbers of heads are those of the tensors."""
    q, k = (t.view(*t.shape[:2], -1, 4).transpose(1, 2) for t in (q, k))
    if how == "native":
        out = F.scaled_dot_product_attention(q, k, k, enable_gqa=True)
    else:
        k = k.repeat_interleave(q.shape[1] // k.shape[1], 1)
        out = F.scaled_dot_product_attention(q, k, k) if how == "repeated" else (q @ k.transpose(-1, -2)).softmax(-1) @ k
    return out.transpose(1, 2).unflatten(2, (-1, 2)).sum(3).flatten(2)


def refined(m, x):
    with torch.no_grad():  # a graph inside of the graph
        x = x + m.out(F.silu(m.q(x)))
    return m.out(F.silu(m.q(x)))


def multihead(module, x):
    return module(x, x, x, need_weights=False)[0]


def summed(q, x):
    """A partial tensor like x under the plan."""
    return x * q(x).sum(-1, keepdim=True)


def by_values(q, out, x):
    """Rows in two parts, whose sizes are values: in the trace they are unknown."""
    first = (x[0, :, 0] > 0).sum().item()
    torch._check(0 <= first)
    torch._check(first <= 6)
    parts = x[0].split([first, 6 - first])
    return torch.cat([out(q(part)) for part in parts]) * x[0]


def put(x, places):
    x = x.clone()
    x[..., places] = 0
    return x


def put_in_front(x, places):
    x = x.transpose(0, 2).clone()
    x[:, places] = torch.arange(16.0)[:, None, None].expand(16, len(places), 2)
    return x.transpose(0, 2)


def by_channel(x, body):
    return body(x.transpose(1, 2)).transpose(1, 2)


def folded(x, weight, bias):
    """As the Conv1D of GPT-2."""
    return torch.addmm(bias, x.view(-1, x.shape[-1]), weight.t()).view(*x.shape[:2], 8)


def kept(m, x):
    values = []
    return m.keeping(m.q(x), values) + values[0]


KINDS = {
    # An integer of the graph
    "view_heads": lambda m, x: m.out(m.q(x).view(*x.shape[:2], 4, 4).softmax(-1).flatten(2)),
    "view_heads_open": lambda m, x: m.out(heads(m.q(x), 4).softmax(-1).flatten(2)),
    "view_rows": lambda m, x: m.out((m.q(x).reshape(-1, 16) * 2).view(*x.shape[:2], -1)),
    "expand": lambda m, x: m.out(m.q(x) * torch.ones(1).expand(16)),
    "broadcast_one_head": lambda m, x: m.out((m.q(x).view(*x.shape[:2], -1, 8) * torch.arange(2.0).view(2, 1)).flatten(2)),
    "full": lambda m, x: m.out(m.q(x) + torch.full((16,), 0.5)),
    "full_one_head": lambda m, x: m.out((m.q(x).view(*x.shape[:2], -1, 8) + torch.full((2, 1), 0.5)).flatten(2)),
    "arange": lambda m, x: m.out(m.q(x) * torch.arange(16.0)),
    "one_hot": lambda m, x: m.out(m.q(x) + F.one_hot(torch.zeros(1, dtype=torch.int64), 16)),
    "multihead": lambda m, x: multihead(m.heads, m.out(m.q(x) * m.k(x))),
    "layer_norm": lambda m, x: m.out(F.layer_norm(m.q(x), (16,))),
    "convolution": lambda m, x: m.out(m.conv(m.q(x).transpose(1, 2)).transpose(1, 2)),
    "cat_full": lambda m, x: m.out(torch.cat([m.q(x), torch.ones(*x.shape[:2], 16)], -1).view(*x.shape[:2], 2, 16).sum(2)),
    "split_number": lambda m, x: m.out(torch.mul(*m.fused(x).split(16, -1))),
    "split_sizes": lambda m, x: m.out(torch.mul(*m.fused(x).split([16, 16], -1))),
    "unbind": lambda m, x: m.out(torch.stack(m.q(x).view(*x.shape[:2], -1, 4).unbind(2), 2).flatten(2)),
    # A part of a sharded dim
    "chunk": lambda m, x: m.out(torch.mul(*m.fused(x).chunk(2, -1))),
    "slice_first": lambda m, x: m.out(F.pad(m.q(x)[..., :8], (0, 8))),
    "slice_last": lambda m, x: m.out(m.q(x) * m.q(x)[..., -1:]),
    "select": lambda m, x: m.out(m.q(x) * m.q(x)[..., 0, None]),
    # A number that follows a shard
    "arange_local": lambda m, x: m.out(m.q(x) * torch.arange(m.q(x).shape[-1])),
    "divide_local": lambda m, x: m.out(m.q(x) / m.q(x).shape[-1]),
    # A number that is computed from the size of a shard
    "scale_power": lambda m, x: m.out(m.q(x) * m.q(x).shape[-1] ** -0.5),
    "scale_root": lambda m, x: m.out(m.q(x) / torch.sym_sqrt(m.q(x).shape[-1])),
    "scale_reciprocal": lambda m, x: m.out(m.q(x) * (1 / m.q(x).shape[-1])),
    "add_tenth": lambda m, x: m.out(m.q(x) + m.q(x).shape[-1] * 0.1),
    "scale_rounded": lambda m, x: m.out(m.q(x) * torch.sym_int(m.q(x).shape[-1] * 0.3)),
    "scale_halved": lambda m, x: m.out(m.q(x) / (m.q(x).shape[-1] // 2)),
    "clamp_root": lambda m, x: m.out(m.q(x).clamp(max=m.q(x).shape[-1] ** 0.5 / 10)),
    "mask_root": lambda m, x: m.out(m.q(x).masked_fill(m.q(x) < 0, m.q(x).shape[-1] ** 0.5)),
    "add_alpha": lambda m, x: m.out(torch.add(m.q(x), m.k(x), alpha=m.q(x).shape[-1])),
    "multiply_beta": lambda m, x: m.out(torch.addmm(m.q.bias, x.flatten(0, 1), m.q.weight.t(), beta=m.q.weight.shape[0] ** 0.5)),
    "fill_local": lambda m, x: m.out(m.q(x) + torch.full((1,), m.q(x).shape[-1])),
    "fill_root": lambda m, x: m.out(m.q(x) + torch.full((1,), m.q(x).shape[-1] ** 0.5)),
    "fill_like": lambda m, x: m.out(m.q(x) + torch.full_like(m.q(x), m.q(x).shape[-1])),
    "fill_number": lambda m, x: m.out(m.q(x) + torch.scalar_tensor(m.q(x).shape[-1])),
    "arange_step": lambda m, x: m.out(m.q(x) + torch.arange(0, 1, 1 / m.q(x).shape[-1]).sum()),
    "topk_local": lambda m, x: m.out(m.q(x) + x.topk(m.q(x).shape[-1] // 4).values.sum(-1, keepdim=True)),
    "scale_data": lambda m, x: m.out(m.q(x) * (x.abs().sum().int().item() * m.q(x).shape[-1])),
    "branch_by_root": lambda m, x: m.out(torch.cond(m.q(x).shape[-1] ** 0.5 > 3.5, lambda y: y * 2, lambda y: y * 3, (m.q(x),))),
    # Results that depend on all elements of a sharded dim
    "layer_norm_open": lambda m, x: m.out(F.layer_norm(m.q(x), m.q(x).shape[-1:])),
    "attention_features": lambda m, x: m.out(F.scaled_dot_product_attention(m.q(x), m.k(x), m.k(x))),
    "topk": lambda m, x: x * m.q(x).topk(8, -1).values,
    "roll_all": lambda m, x: m.out(m.q(x).view(*x.shape[:2], -1, 4).roll(1).flatten(2)),
    "tril": lambda m, x: m.out(m.q(x).tril()),
    "masked_scatter": lambda m, x: m.out(m.q(x).masked_scatter((x[..., :1] > 0).expand_as(m.q(x)), torch.ones(2, 6, 16))),
    "masked_scatter_rows": lambda m, x: m.out(m.q(x).masked_scatter((x[..., :1] > 0).expand_as(m.q(x)), m.k(x))),
    "expanded_sum": lambda m, x: x * m.q(x).sum(-1, keepdim=True).expand(-1, -1, 8),
    "joined_sums": lambda m, x: torch.cat([m.q(x).sum(-1, keepdim=True)] * 8, -1) * x,
    "largest": lambda m, x: x * m.q(x).amax(-1, keepdim=True),
    "softmax": lambda m, x: m.out(m.q(x).softmax(-1)),
    "cumsum": lambda m, x: m.out(m.q(x).cumsum(-1)),
    "sort": lambda m, x: m.out(m.q(x).sort(-1).values),
    "flip": lambda m, x: m.out(m.q(x).flip(-1)),
    "roll": lambda m, x: m.out(m.q(x).roll(1, -1)),
    "along_tokens": lambda m, x: m.out((m.q(x).softmax(1).cumsum(1).sort(1).values.flip(1).roll(1, 1))),
    # A sum over shards that is not summed over the ranks
    "sum": lambda m, x: x * m.q(x).sum(-1, keepdim=True),
    "mean": lambda m, x: x * m.q(x).mean(-1, keepdim=True),
    "kept": kept,
    "sigmoid_of_sum": lambda m, x: x * m.q(x).sum(-1, keepdim=True).sigmoid(),
    "clamp_of_sum": lambda m, x: x * m.q(x).sum(-1, keepdim=True).clamp(-1, 1),
    "larger_of_sum": lambda m, x: torch.maximum(m.q(x).sum(-1, keepdim=True), x),
    "positive_sum": lambda m, x: x * (m.q(x).sum(-1, keepdim=True) > 0),
    "one_added": lambda m, x: x * (m.q(x).sum(-1, keepdim=True) + 1),
    "one_filled": lambda m, x: x * m.q(x).sum(-1, keepdim=True).masked_fill(x[..., :1] > 0, 1),
    "bias_added": lambda m, x: F.linear(m.q(x).sum(-1, keepdim=True), torch.ones(8, 1), x[0, 0]),
    "outer": lambda m, x: m.out((m.q(x)[..., :, None] * m.k(x)[..., None, :]).sum(-1)),
    "partial_and_sharded": lambda m, x: m.out(m.k(x) * m.q(x).sum(-1, keepdim=True)),
    "full_added": lambda m, x: summed(m.q, x) + x,
    "full_joined": lambda m, x: torch.cat([summed(m.q, x), x], -1),
    "topk_of_sum": lambda m, x: summed(m.q, x).topk(4, -1).values,
    "sum_scattered": lambda m, x: x.masked_scatter(x > 0, summed(m.q, x)),
    "sum_collected": lambda m, x: x * torch.zeros(6, 8).index_add(0, torch.arange(6), summed(m.q, x)[0]).softmax(-1),
    # A rowwise bias that is not the last to be added to the output
    "bias_scaled": lambda m, x: m.own(m.q(x), lambda y, w, b: F.linear(y, w, b) * 2),
    "bias_masked": lambda m, x: m.own(m.q(x), lambda y, w, b: F.linear(y, w, b).masked_fill(torch.arange(6)[:, None] > 2, 0.0)),
    "bias_summed": lambda m, x: m.own(m.q(x), lambda y, w, b: F.linear(y, w, b).sum(1, keepdim=True)),
    "bias_turned": lambda m, x: m.own(m.q(x), lambda y, w, b: F.linear(y, w, b).transpose(1, 2)).transpose(1, 2),
    "bias_subtracted": lambda m, x: m.own(m.q(x), lambda y, w, b: F.linear(y, w) - b),
    "bias_twice": lambda m, x: sum(m.own(m.q(x), lambda y, w, b: (F.linear(y, w, b), F.linear(y, w, b) * 2))),
    "bias_doubled": lambda m, x: m.own(m.q(x), lambda y, w, b: F.linear(y, w, b) + F.linear(y, w, b)),
    "bias_of_uncalled": lambda m, x: F.linear(m.q(x), m.own.weight, m.own.bias),
    "bias_unused": lambda m, x: m.own(m.q(x), lambda y, w, b: F.linear(y, w)),
    # Heads of which a rank has the same as another
    "shared_heads": lambda m, x: x * m.few(x).sum(-1, keepdim=True),
    # Indices of the full dim
    "fill_places": lambda m, x: m.out(m.q(x).index_fill(2, torch.tensor([1, 3]), 0.0)),
    "put_places": lambda m, x: m.out(put(m.q(x), torch.tensor([1, 3]))),
    "scatter_places": lambda m, x: m.out(m.q(x).scatter(2, torch.ones(2, 6, 1, dtype=torch.int64), 0.0)),
    "put_in_front": lambda m, x: m.out(put_in_front(m.q(x), torch.tensor([1, 3]))),
    "look_up_places": lambda m, x: m.out(m.q(x)[..., torch.arange(16).flip(0)]),
    "gather_first": lambda m, x: x * m.q(x).gather(1, torch.zeros(2, 6, 1, dtype=torch.int64)),
    # A dim of one element on a rank
    "squeeze_heads": lambda m, x: m.out(
        m.q(x).view(*x.shape[:2], -1, 8).transpose(1, 2).squeeze(1).transpose(1, 2).flatten(2)
    ),
    # Statistics of all elements, and neighbors, along a sharded dim
    "normalized_rows": lambda m, x: m.out(F.batch_norm(m.q(x), None, None, training=True)),
    "resized_features": lambda m, x: m.out(F.interpolate(m.q(x), size=16, mode="linear")),
    "neighbors": lambda m, x: m.out(torch.diff(m.q(x), dim=-1, append=x[..., :1])),
    "distances_of_features": lambda m, x: x * torch.cdist(m.q(x), m.k(x)).sum(-1, keepdim=True),
    "group_norm": lambda m, x: m.out(F.group_norm(m.q(x).transpose(1, 2), 4).transpose(1, 2)),
    # A condition on the size of a parameter
    "guard": lambda m, x: m.out(m.q(x) if m.q(x).shape[-1] > 9 else m.k(x)),
    # Other elements of a rank in one operand than in the other, for a fused projection in packed shards
    "alternating": lambda m, x: m.out(F.silu(m.fused(x)[..., ::2]) * m.fused(x)[..., 1::2]),
    "alternating_product": lambda m, x: m.out(m.q(x) * m.fused(x)[..., ::2]),
    # Uneven shards
    "least": lambda m, x: m.out(m.q(x) * torch.sym_min(m.q(x).shape[-1], 5)),
    "one_feature": lambda m, x: x * m.gate(x),
    # Branches: by the size of a shard, by a partial tensor, with different layouts
    "branch_by_shard": lambda m, x: m.out(torch.cond(m.q(x).shape[-1] > 12, lambda y: y * 2, lambda y: y * 3, (m.q(x),))),
    "branch_by_partial": lambda m, x: torch.cond(m.q(x).sum() > 0, lambda y: y * 2, lambda y: y * 3, (x,)),
    "branch_layouts": lambda m, x: m.out(torch.cond(x.sum() > 0, m.q, lambda y: torch.cat([y, y], -1), (x,))),
    # An index of another shape than the tensor, along the dim that both have
    "gather_few": lambda m, x: m.out((x.repeat(1, 1, 4) * torch.arange(32.0)).gather(1, (m.q(x) > 0).long())),
    "scatter_few": lambda m, x: x * last(torch.zeros(2, 6, 32).scatter(1, (m.q(x) > 0).long(), m.q(x))),
    "slice_scatter_first": lambda m, x: x * last(torch.slice_scatter(torch.zeros(2, 6, 32), m.q(x), 2, 0, m.q(x).shape[-1])),
    "masked_scatter_elements": lambda m, x: m.out(m.q(x).masked_scatter(m.q(x) > 0, m.k(x))),
    # Two dims of the size of a shard
    "expanded_square": lambda m, x: x * m.q(x)[..., None].expand(-1, -1, -1, m.q(x).shape[-1]).sum((-1, -2))[..., None],
    # Numbers that are read from tensors, or are sizes
    "item_of_sum": lambda m, x: x * m.q(x).sum().item(),
    "ignored_class": lambda m, x: x * F.cross_entropy(x.flatten(0, 1), (x[..., 0] > 0).long().flatten(), ignore_index=m.q(x).shape[-1] // 8 - 1),
    "shuffled_groups": lambda m, x: F.channel_shuffle(x.transpose(1, 2)[..., None], m.q(x).shape[-1] // 4)[..., 0].transpose(1, 2),
    "dilated": lambda m, x: x * F.conv1d(x.transpose(1, 2), torch.arange(24.0).view(1, 8, 3), padding=m.q(x).shape[-1] // 8, dilation=m.q(x).shape[-1] // 8).transpose(1, 2),
    "classes_of_rows": lambda m, x: x * F.cross_entropy(m.q(x), (m.k(x) > 0).long()[:, 0]),
    "renormalized": lambda m, x: m.out(m.q(x).transpose(0, 2).renorm(2, 1, 1.0).transpose(0, 2)),
    "weighted_loss": lambda m, x: m.out(F.binary_cross_entropy_with_logits(m.q(x), m.k(x).sigmoid(), pos_weight=torch.arange(16.0), reduction="none")),
    # Memory that several views show
    "written_sibling": lambda m, x: m.own(m.q(x), lambda y, w, b: written_sibling(F.linear(y, w, b))),
    "written_base": lambda m, x: m.own(m.q(x), lambda y, w, b: written_base(F.linear(y, w, b))),
    "filled_base": lambda m, x: m.own(m.q(x), lambda y, w, b: filled_base(F.linear(y, w, b))),
    "written_unread": lambda m, x: m.out(cumulated(m.q(x) * 1)),
    # Rows that are chosen by values, numbers that hide others, and thresholds far off
    "chosen_rows": lambda m, x: x * m.q(x)[x[..., 0] > 0].mean(),
    "masked_scores": lambda m, x: masked_scores(m.q(x)[0], m.k(x)[0]) @ x,
    "clipped": lambda m, x: m.own(m.q(x) * 100, lambda y, w, b: F.linear(y, w).clip(-20.0, 20.0)),
    # Heads that ranks share, behind others
    "shared_heads_behind": lambda m, x: x * torch.cat([m.q(x), m.few(x)], -1).sum(-1, keepdim=True),
    # Harmless
    "axes": lambda m, x: m.out(m.q(x).swapaxes(-1, 1).mT.flip(1).swapaxes(0, 1).swapaxes(1, 0)),
    "along": lambda m, x: m.out(torch.take_along_dim(m.q(x), x[..., :1].argsort(1), 1)),
    "gated": lambda m, x: m.out(F.glu(torch.stack([m.q(x), m.k(x)], 1).flatten(0, 1), 0)),
    "chosen_experts": chosen_experts,
    "negative_in_place": lambda m, x: m.out(negative_in_place(m.q(x) * 1)),
    # Its output is sharded
    "turned": lambda m, x: m.q(x).rot90(2, (0, 1)),
    "one_key_head": lambda m, x: m.out(one_key_head(m.q(x), m.k(x)[..., :4])),
    "key_cache": lambda m, x: m.out(one_key_head(m.q(x), cached(m.k(x)[..., :4]))),
    "factor_written": lambda m, x: m.out(times_in_place(m.q(x) * 1, m.k(x)[..., :4])),
    "too_large": lambda m, x: m.out(one_key_head(m.q(x), m.k(x)[..., :4])[:, :, None].expand(-1, -1, 70000, -1).mean(2)),
    "clipped_factor": lambda m, x: m.out(m.q(x) * m.slopes.weight[:1].clamp(1e-3, 0.1)),
    "between_factor": lambda m, x: m.out(m.q(x) * m.slopes.weight[:1].clamp(4.6, 4.62)),
    "angle_factor": lambda m, x: m.out(m.q(x) * m.slopes.weight.asin().mean()),
    "unrecorded_scale": lambda m, x: m.out(unrecorded(m.q(x) * m.slopes.weight[:1])),
    "two_parts": lambda m, x: two_parts(m.q(x), m.out, *m.k(x).split([8, 8], -1)),
    "lent": lambda m, x: m.out(m.q(x) * m.own(x * 1, lambda y, w, b: F.linear(y.mul_(2), w[:1, :8]))),
    "chosen_view": lambda m, x: x + m.out(chosen_view(m.q(x[x[..., 0] > 0]))).mean(0),
    "given_result": lambda m, x: m.out(given_result(m.q(x), lambda h, y: torch.cumsum(h, -1, out=y))),
    "given_result_fits": lambda m, x: m.out(given_result(m.q(x), lambda h, y: torch.add(h, h, out=y))),
    "branch": lambda m, x: m.out(torch.cond(x.sum() > 0, m.q, m.k, (x,))),
    "by_values": lambda m, x: by_values(m.q, m.out, x),
    "none": lambda m, x: m.out(F.silu(m.q(x)) * m.k(x)),
    "never_called": lambda m, x: m.out(m.q(x) if m.own.bias is None else m.k(x)),
    "torn": lambda m, x: m.out(m.q(x) * m.k(x)),
    "bias_folded": lambda m, x: m.own(m.q(x), folded),
    "bias_in_sum": lambda m, x: m.own(m.q(x), lambda y, w, b: F.linear(y, w, b) + F.linear(y, w) * 2),
    "bias_moved": lambda m, x: m.own(m.q(x), lambda y, w, b: F.linear(y.transpose(0, 1), w, b).transpose(0, 1)[:, 1:]),
    "masked_sum": lambda m, x: torch.where(x > 0, summed(m.q, x), torch.tensor(0.0)),
    "sum_reduced": lambda m, x: torch.zeros(6, 8).scatter_reduce(0, torch.arange(6)[:, None].expand(6, 8), summed(m.q, x)[0], "sum"),
    "sum_differences": lambda m, x: torch.diff(summed(m.q, x), dim=1, prepend=torch.zeros(2, 1, 8)),
    "sum_crossed": lambda m, x: torch.linalg.cross(summed(m.q, x)[..., :3], x[..., 1:4]),
    "sum_resized": lambda m, x: F.interpolate(summed(m.q, x), scale_factor=2.0, mode="linear"),
    "normalized": lambda m, x: m.out(by_channel(m.q(x), m.norm)),
    "sloped": lambda m, x: m.out(by_channel(m.q(x), m.slopes)),
    "resized": lambda m, x: m.out(by_channel(m.q(x), lambda y: F.interpolate(y, size=9, mode="linear"))),
    "moved": lambda m, x: m.out(m.q(x).movedim(-1, 0).softmax(1).movedim((0, 1, 2), (2, 0, 1))),
    "tiled": lambda m, x: m.out(m.q(x).tile(2, 1)),
    "differences": lambda m, x: m.out(torch.diff(m.q(x), dim=1, append=m.k(x)[:, :1])),
    "crossed": lambda m, x: m.out(by_channel(m.q(x), lambda y: torch.linalg.cross(y[..., :3], y[..., 1:4]))),
    "distances": lambda m, x: m.out(by_channel(m.q(x), lambda y: torch.cdist(y, torch.ones(5, 6)))),
    "divide_integer": lambda m, x: m.out(m.q(x) / 16),
    "slice_all": lambda m, x: m.out(m.q(x)[..., :16]),
    "slice_second": lambda m, x: m.out(m.q(x)[..., ::2].repeat_interleave(2, -1)),
    "head_size": lambda m, x: m.out(m.q(x).view(*x.shape[:2], -1, 4).softmax(-1).flatten(2)),
    "computed_heads": lambda m, x: m.out(m.q(x).view(*x.shape[:2], m.q.weight.shape[0] // 4, 4).softmax(-1).flatten(2)),
    "full_local": lambda m, x: m.out(m.q(x) + torch.full((m.q(x).shape[-1],), 0.5)),
    "zeros_like": lambda m, x: m.out(m.q(x) + torch.ones_like(m.q(x))),
    "expand_one": lambda m, x: m.out(m.q(x) * torch.ones(1).expand(1, 1, 1)),
    "attention": lambda m, x: m.out(attention(m.q(x), m.k(x), 1)),
    "einsum": lambda m, x: m.out(torch.einsum("bti,bsi,bsj->btj", x, x, m.q(x))),
    "stack": lambda m, x: m.out(torch.stack([m.q(x), m.k(x)], -1).sum(-1)),
    "cat_heads": lambda m, x: m.out(torch.cat(m.q(x).view(*x.shape[:2], -1, 4).chunk(2, -1)[::-1], -1).flatten(2)),
    "without_gradients": refined,
    "multihead_replicated": lambda m, x: m.out(m.q(x) * m.k(multihead(m.replicated, x))),
    "grouped_native": lambda m, x: m.out(grouped(m.fused(x), m.k(x), "native")),
    "grouped_repeated": lambda m, x: m.out(grouped(m.fused(x), m.k(x), "repeated")),
    "grouped_products": lambda m, x: m.out(grouped(m.fused(x), m.k(x), "products")),
    "scale_ratio": lambda m, x: m.out(m.q(x) * (m.q(x).shape[-1] / m.k(x).shape[-1] * 0.5)),
    "scale_ratio_of_roots": lambda m, x: m.out(m.q(x) * (m.q(x).shape[-1] ** 0.5 * m.k(x).shape[-1] ** -0.5)),
    # torch.export makes a constant of these: the number of the full model
    "constant_root": lambda m, x: m.out(m.q(x) / math.sqrt(m.q(x).shape[-1])),
    "constant_scale": lambda m, x: m.out(attention(m.q(x), m.k(x), 1, m.q(x).shape[-1] ** -0.5)),
    "scale_head_size": lambda m, x: m.out(m.q(x) * m.q(x).view(*x.shape[:2], -1, 4).shape[-1] ** -0.5),
    "scale_tokens": lambda m, x: m.out(m.q(x) * x.shape[1] ** -0.5),
    "rounded_heads": lambda m, x: m.out(m.q(x).view(*x.shape[:2], torch.sym_int(m.q(x).shape[-1] * 0.25), 4).softmax(-1).flatten(2)),
    "gathered": lambda m, x: m.k(x).view(*x.shape[:2], 4, 4).softmax(-1).flatten(2),
}


def slim(path):
    """Leaves out what nothing reads, and of stack traces all but the lines of this file."""
    with zipfile.ZipFile(path) as archive:
        entries = [(info, archive.read(info)) for info in archive.infolist() if "/sample_inputs/" not in info.filename]
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for info, data in entries:
            if info.filename.endswith("models/model.json"):
                model = json.loads(data)
                for node in nodes_of(model["graph_module"]["graph"]):
                    trace = node["metadata"].pop("stack_trace", "")
                    node["metadata"].pop("torch_fn", None)
                    if found := re.search(r'File "[^"]*/(make_programs.py", line \d+, in )', trace):
                        node["metadata"]["stack_trace"] = f'  File "{found[1]}forward\n    body'
                data = json.dumps(model, separators=(",", ":")).encode()
            archive.writestr(zipfile.ZipInfo(info.filename), data)


def tear(path):
    """Makes the product a part of the call of `q`: the operators of `k`'s call are then between those of `q`'s."""
    with zipfile.ZipFile(path) as archive:
        entries = [(info, archive.read(info)) for info in archive.infolist()]
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for info, data in entries:
            if info.filename.endswith("models/model.json"):
                model = json.loads(data)
                nodes = model["graph_module"]["graph"]["nodes"]
                (product,) = [node for node in nodes if node["target"] == "torch.ops.aten.mul.Tensor"]
                product["metadata"]["nn_module_stack"] = nodes[0]["metadata"]["nn_module_stack"]
                data = json.dumps(model, separators=(",", ":")).encode()
            archive.writestr(zipfile.ZipInfo(info.filename), data)


def nodes_of(graph):
    """The nodes of a graph and of the graphs inside it."""
    for node in graph["nodes"]:
        yield node
        for argument in node["inputs"]:
            if "as_graph" in argument["arg"]:
                yield from nodes_of(argument["arg"]["as_graph"]["graph"])


def model_of(body):
    class Model(Base):
        def forward(self, x):
            return body(self, x)

    model = Model()
    for child in ("q", "k", "fused", "conv", "out", "gate", "keeping", "heads", "replicated", "own", "few", "norm", "slopes"):
        if child not in body.__code__.co_names:
            delattr(model, child)
    return model


def main():
    torch.manual_seed(2)
    for name, body in KINDS.items():
        if sys.argv[1:] and name not in sys.argv[1:]:
            continue
        out = HERE / f"{name}.pt2"
        export(model_of(body), (torch.randn(2, 6, 8),), out=out, weights=True)
        slim(out)
        if name == "torn":
            tear(out)
        print(name)


if __name__ == "__main__":
    main()
