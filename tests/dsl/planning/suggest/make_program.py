#!/usr/bin/env python3
"""Writes unnamed.pt2: a decoder whose module names and shapes do not tell which projection a block ends with (suggest_test.cc).

    make_program.py    needs torch 2.11

Attention has four square projections, of which `a` is the last; two feed-forward blocks share a directory and all shapes.
"""

import json
import pathlib
import sys

import torch
import torch.nn.functional as F

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[3] / "engine/models/program/export"))
sys.path.insert(0, str(HERE.parents[2] / "parity/fixed_sizes"))

from export_program import export  # noqa: E402
from make_programs import slim  # noqa: E402

HIDDEN, HEADS, WIDE = 16, 4, 40


class Mixer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        for name in "abcd":
            setattr(self, name, torch.nn.Linear(HIDDEN, HIDDEN))

    def forward(self, x):
        q, k, v = (t(x).view(*x.shape[:2], -1, HIDDEN // HEADS).transpose(1, 2) for t in (self.b, self.c, self.d))
        return self.a(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class Wide(torch.nn.Module):
    def __init__(self):
        super().__init__()
        for name in "ef":
            setattr(self, name, torch.nn.Linear(HIDDEN, WIDE))
        for name in "gh":
            setattr(self, name, torch.nn.Linear(WIDE, HIDDEN))

    def forward(self, x):
        return self.g(F.silu(self.f(x))) + self.h(torch.tanh(self.e(x)))


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.m, self.w = Mixer(), Wide()
        self.n1, self.n2 = torch.nn.LayerNorm(HIDDEN), torch.nn.LayerNorm(HIDDEN)

    def forward(self, x):
        x = x + self.m(self.n1(x))
        return x + self.w(self.n2(x))


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.ModuleList(Block() for _ in range(2))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


def main():
    config = {"architectures": ["Unnamed"], "hidden_size": HIDDEN, "num_attention_heads": HEADS, "num_key_value_heads": HEADS}
    model = {"class": "Net", "defined_in": "make_program", "type": None, "config": json.dumps(config)}
    out = HERE / "unnamed.pt2"
    export(Net(), (torch.randn(2, 6, HIDDEN),), out=out, extra={"model": model})
    slim(out)


if __name__ == "__main__":
    main()
