"""Writes small.pt2, the program of exported_program_test.cc: python make_small.py FOLDER_OF_EXPORT_PROGRAM

Two layers with norms that cast, a region without gradients inside of another mode, tied weights, a constant, a buffer that
checkpoints hold and one that they do not, sizes that vary, and what the graph does not keep.
"""

import json
import pathlib
import sys
import zipfile

import torch
from torch import nn

sys.path.insert(0, sys.argv[1])
from export_program import export  # noqa: E402


class Norm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8, dtype=torch.bfloat16))

    def forward(self, x):
        wide = x.to(torch.float32)
        return self.weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = Norm()
        self.up = nn.Linear(8, 12, bias=False, dtype=torch.bfloat16)
        self.down = nn.Linear(12, 8, dtype=torch.bfloat16)
        self.register_buffer("seen", torch.zeros(8))
        self.register_buffer("scale", torch.full((1, 8), 0.5), persistent=False)

    def forward(self, x):
        with torch.no_grad():
            shift = torch.arange(x.shape[1]).to(x.dtype)[:, None] * self.scale.to(x.dtype)
        return x + self.down(nn.functional.dropout(self.up(self.norm(x + shift)), 0.0, self.training))


class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0
        self.embed = nn.Embedding(32, 8, dtype=torch.bfloat16)
        self.layers = nn.ModuleList(Layer() for _ in range(2))
        self.head = nn.Linear(8, 32, bias=False, dtype=torch.bfloat16)
        self.head.weight = self.embed.weight

    def forward(self, ids, weight):
        self.calls += 1
        x = self.embed(ids)
        with torch.no_grad():
            signs = torch.tensor([1.0, -1.0]).repeat(4)
            with torch.enable_grad():
                x = x * weight
            x = x * signs
        for layer in self.layers:
            x = layer(x.to(torch.bfloat16))
        return self.head(x), {"states": x}


def without_traces(path):
    """Without what is for debuggers and for torch.export.load: the file is a third as long."""
    with zipfile.ZipFile(path) as archive:
        entries = {info.filename: archive.read(info) for info in archive.infolist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for name, content in entries.items():
            if name.endswith("/models/model.json"):
                model = json.loads(content, object_hook=_without_trace)
                content = json.dumps(model, separators=(",", ":")).encode()
            if "/sample_inputs/" not in name:
                archive.writestr(zipfile.ZipInfo(name), content)


UNREAD = ("stack_trace", "torch_fn", "kind", "is_hop_single_tensor_return", "device", "layout", "strides", "storage_offset")


def _without_trace(value):
    return {key: inner for key, inner in value.items() if key not in UNREAD or "type" in value}


GUARDS = [
    {"condition": ["le", "s30", ["mul", 16, ["max", 1, ["floordiv", "s15", 2]]]], "text": "s30 <= 16*Max(1, s15//2)",
     "place": "small.py:3", "origin": "model"},
    {"condition": ["not", ["and", ["eq", ["mod", "s30", 7], 6], ["text", "f(s30)"]]], "text": "f", "origin": "operator"},
]  # fmt: skip
RECIPES = {
    "embed.weight": [{"reshape": {"stack": "rows.{}.w", "count": 4, "dim": 0}, "shape": [32, 8]}],
    "layers.0.up.weight": [
        {"concatenate": [{"tensor": "up_a"}, {"slice": {"tensor": "up_b"}, "dim": 0, "start": 2, "stop": 6}], "dim": 0},
        {"permute": {"select": {"tensor": "ups"}, "dim": 0, "index": 3}, "dims": [1, 0]},
    ],
    "layers.1.norm.weight": [{"stack": [{"tensor": f"n{i}"} for i in range(2)], "dim": -1}],
}
UNSUPPORTED = {"layers.0.seen": "Seen: aten.cos", "layers.1.seen": {"reason": "Seen: aten.sin", "sources": ["a", "b"]}}
torch.manual_seed(1)
out = pathlib.Path(__file__).parent / "small.pt2"
extra = {"guards": GUARDS, "weights": {"tensors": RECIPES, "unsupported": UNSUPPORTED}}
export(Small(), (torch.zeros(2, 6, dtype=torch.int64), torch.ones(2, 6, 1)), out=out, extra=extra)
without_traces(out)
