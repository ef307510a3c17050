#!/usr/bin/env python3
"""Checks what the exporter refuses and records, for tests/parity/python_graph_test.cc.

    check_exporter.py TORCH

After an export that fails, the directory of OUT is as it was before. TORCH is as in run_graph.py. Exit status 77: as in
run_graph.py; 1: a check fails, with its text.
"""

import inspect
import json
import logging
import pathlib
import runpy
import sys
import tempfile
import warnings
import zipfile

from run_graph import import_torch

import_torch(pathlib.Path(sys.argv[1]))
sys.path.insert(0, str(pathlib.Path(__file__).parents[3] / "engine/models/program/export"))

import torch  # noqa: E402

import export_program  # noqa: E402

X = torch.linspace(-1, 1, 12).view(3, 4)


class BranchOfValues(torch.nn.Module):
    def forward(self, x):
        return x * 2 if x.sum() > 0 else x


class Loop(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Module()
        self.inner.forward = lambda x: torch.while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, y * 2), (torch.tensor(0), x))[1]

    def forward(self, x):
        return self.inner(x)


class NotInEvaluation(torch.nn.Module):
    def forward(self, x):
        return x * 2 if self.training or x.sum() > 0 else x


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 3


class NotKept(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0
        self.linear = torch.nn.Linear(4, 4)
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("count", torch.zeros(4))

    def forward(self, x):
        self.calls += 1
        self.mean = self.mean * 0.9 + x.detach().mean(0) * 0.1
        self.count.add_(1)
        return Double.apply(self.linear(x)) + self.mean


class TwoPaths(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Sequential(torch.nn.Linear(4, 4))
        self.second = self.first

    def forward(self, x):
        return self.second(self.first(self.second(x)))


def files(folder: pathlib.Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else b"" for path in folder.rglob("*")}


def error_of(work) -> str:
    try:
        work()
    except Exception as error:  # noqa: BLE001
        return f"{type(error).__name__}: {error}"
    return "no error"


def refused(module: torch.nn.Module, *parts: str) -> list[str]:
    """What is wrong where the export should fail with an error that has these parts: to an archive, to a directory, and
    over files that are there."""
    wrong = []
    for out in ("out.pt2", "out"):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            (folder / "out.pt2").write_bytes(b"before")
            before = files(folder)
            error = error_of(lambda: export_program.export(module, (X,), out=folder / out))
            wrong += [f"{out}: no {part!r} in {error!r}" for part in parts if part not in error]
            if files(folder) != before:
                wrong.append(f"{out}: the directory has {sorted(files(folder))}")
    return wrong


def refused_branch() -> list[str]:
    return refused(BranchOfValues(), "ExportError: the model takes a branch or a size from the values of a tensor",
                   "check_exporter.py:", "`return x * 2 if x.sum() > 0 else x`")  # fmt: skip


class BranchesOfNumbers(torch.nn.Module):
    def __init__(self, number: float, other: float) -> None:
        super().__init__()
        self.numbers = number, other

    def forward(self, x):
        a, b = self.numbers
        made, number = torch.cond(x.sum() > 0, lambda y: (y * 2, a), lambda y: (y + 1, b), (x,))
        return made * number


def refused_numbers() -> list[str]:
    """Branches may return an integer, the same in both."""
    wrong = refused(BranchesOfNumbers(2, 3), "ExportError: torch.cond has branches with different results: float32[",
                    ", 2 if true, float32[", ", 3 if false; it is called at check_exporter.py:")  # fmt: skip
    wrong += refused(BranchesOfNumbers(1.5, 1.5), "ExportError: torch.cond has a branch that returns a value that is neither a "
                     "tensor nor a constant integer; it is called at check_exporter.py:")  # fmt: skip
    return wrong


def refused_loop() -> list[str]:
    return refused(Loop(), "ExportError: the higher-order operator torch.while_loop is not supported",
                   "called in module 'inner' (", "check_exporter.py:")  # fmt: skip


def refused_evaluation() -> list[str]:
    """The archive of training alone would be no directory of programs."""
    with tempfile.TemporaryDirectory() as name:
        out = pathlib.Path(name) / "out"
        error = error_of(lambda: export_program.export(NotInEvaluation(), (X,), out=out))
        left = files(pathlib.Path(name))
        alone = export_program.export(NotInEvaluation(), (X,), out=pathlib.Path(name) / "out.pt2").description
    wrong = [] if "ExportError: the model takes a branch" in error else [error]
    wrong += [f"left: {sorted(left)}"] if left else []
    return wrong + ([] if alone["options"].get("evaluates") is False else ["one archive is also for evaluation"])


def full_disk() -> list[str]:
    """torch.export.save writes a part of the archive and fails."""
    real = torch.export.save

    def save(program, path, **more):
        pathlib.Path(path).write_bytes(b"a part")
        raise OSError("no space left")

    torch.export.save = save
    try:
        return refused(torch.nn.Linear(4, 4), "OSError: no space left")
    finally:
        torch.export.save = real


def command_line() -> list[str]:
    """A directory of programs, of which the second set of inputs cannot be exported."""
    real, exported = export_program.export_model, export_program.export(torch.nn.Linear(4, 4), (X,))

    def export_model(model, options, out=None):
        if options.inputs != ["x"]:
            raise export_program.ExportError("the second set")
        exported.save(out)
        return exported

    export_program.export_model = export_model
    try:
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            code = export_program.main(["model", str(folder / "out"), "--inputs", "x", "--inputs", "x", "mask"])
            left = files(folder)
            good = export_program.main(["model", str(folder / "out"), "--inputs", "x"])
            made = sorted(files(folder))
    finally:
        export_program.export_model = real
    wrong = [] if code == 1 and good == 0 else [f"status {code} of the one that fails, {good} of the other"]
    wrong += [f"left: {sorted(left)}"] if left else []
    return wrong + ([] if made == ["out", "out/default.pt2", "out/index.json"] else [f"made: {made}"])


def not_kept() -> list[str]:
    with tempfile.TemporaryDirectory() as name:
        out = pathlib.Path(name) / "out.pt2"
        description = export_program.export(NotKept(), (X,), out=out).description
        stored = torch.export.load(out, extra_files=(extra := {"moonshard.json": ""})) and json.loads(extra["moonshard.json"])
    expected = [{"kind": "backward", "name": "Double"}, {"kind": "attribute", "name": "calls"}, {"kind": "buffer", "name": "mean"}]
    found = sorted(stored["not_kept"], key=lambda one: one["name"])
    wrong = [] if found == expected else [f"{found}"]
    for part in ("Double defines its own backward", "forward assigns a new tensor to mean", "forward changes calls"):
        wrong += [] if any(part in note for note in description["notes"]) else [f"no note {part!r}: {description['notes']}"]
    none = export_program.export(torch.nn.Linear(4, 4), (X,)).description["not_kept"]
    return wrong + ([f"of a layer: {none}"] if none else [])


def two_paths() -> list[str]:
    """A call has the path of the graph's stacks, also of a module that has several."""
    exported = export_program.export(TwoPaths(), (X,))
    stacks = [list(node.meta["nn_module_stack"])[-1] for node in exported.program.graph.nodes if "linear" in node.name]
    calls = [f"{one['module']}@{one['call']}" for one in exported.description["calls"] if one["module"].endswith(".0")]
    return [] if calls == stacks == ["second.0@0", "first.0@0", "second.0@1"] else [f"{calls} for {stacks}"]


class Attention(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = torch.nn.MultiheadAttention(4, 2, batch_first=True)

    def forward(self, x):
        return self.attention(x, x, x, need_weights=False)[0]


class Branches(torch.nn.Module):
    """Two branches by the values of the input, and two by its length."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x):
        length = x.shape[1]
        x = torch.cond(x.sum() > 0, lambda y: self.linear(y), lambda y: y.sin(), (x,))
        return torch.cond(length > 3, lambda y: self.linear(y) + length, lambda y: y * 2, (x,))


def any_length() -> list[str]:
    """Modules of torch.nn and branches are exported without conditions, for every batch and length: what a program of
    these sizes computes is what the module computes. An example with a batch or a length of 1 has that size fixed."""
    layer = torch.nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)
    modules = (Attention(), torch.nn.TransformerEncoder(layer, 2), torch.nn.GRU(4, 3, batch_first=True),
               torch.nn.LSTM(4, 3, 2, bidirectional=True, batch_first=True), Branches())  # fmt: skip
    wrong = []
    for module in modules:
        name, main = type(module).__name__, next(iter(inspect.signature(module.forward).parameters))
        for batch, length in ((2, 5), (1, 3), (2, 1)):
            exported = export_program.export(module, (torch.randn(batch, length, 4),), weights=True)
            found, fixed = exported.description, [size for size in (batch, length) if size == 1]
            if found["guards"]:
                wrong.append(f"{name} of {batch} x {length}: {[one['text'] for one in found['guards']]}")
            if [one["ranges"] for one in found["valid"].values()] != [[[1, export_program.LONGEST]]] * (2 - len(fixed)):
                wrong.append(f"{name} of {batch} x {length}: valid is {found['valid']}")
            if [size for size in found["inputs"][0]["shape"] if size == 1] != fixed:
                wrong.append(f"{name} of {batch} x {length}: the input is {found['inputs']}")
            if fixed:
                continue
            examples = [{main: torch.randn(*sizes, 4)} for sizes in ((3, 7), (1, 4), (3, 1), (1, 1))]
            examples += [{main: -one[main]} for one in examples]  # of the other branch
            wrong += [f"{name}: {one.results} for {one.shape}"
                      for one in export_program.check(exported, module, examples, {}) if one.worst > 1e-6]  # fmt: skip
    return wrong


class Nested(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, parts, scales):
        made = self.linear(parts[0]) * scales["wide"] + scales["narrow"]
        return {"made": made, "parts": [parts[1], (made.sum(1), made.shape[1])]}


def nested_values() -> list[str]:
    """Tensors of lists and dicts are inputs and outputs of their own, by position and by key."""
    x, narrow = torch.randn(2, 5, 4), torch.randn(2, 5, 1)
    kinds = {"parts.0": "ids", "scales.wide": "mask"}
    found = export_program.export(Nested(), ([x, x],), {"scales": {"wide": x, "narrow": narrow}},
                                  kinds=lambda name: kinds.get(name, "other")).description  # fmt: skip
    batch, length = found["inputs"][0]["shape"][:2]
    inputs = [(name, "float32", [batch, length, size], kinds.get(name, "other"))
              for name, size in (("parts.0", 4), ("parts.1", 4), ("scales.wide", 4), ("scales.narrow", 1))]  # fmt: skip
    outputs = [("made", [batch, length, 4]), ("parts.0", [batch, length, 4]), ("parts.1.0", [batch, 4]),
               ("parts.1.1", None)]  # fmt: skip
    wrong = []
    if [(one["name"], one["dtype"], one["shape"], one["kind"]) for one in found["inputs"]] != inputs:
        wrong.append(f"inputs {found['inputs']}")
    if [(one["name"], one.get("shape")) for one in found["outputs"]] != outputs:
        wrong.append(f"outputs {found['outputs']}")
    if found["guards"] or [one["ranges"] for one in found["valid"].values()] != [[[1, export_program.LONGEST]]] * 2:
        wrong.append(f"guards {found['guards']}, valid {found['valid']}")
    return wrong


def condition_of_example() -> list[str]:
    """A condition that the example violates is a fault of the exporter; one that cannot be evaluated is a note."""
    real, added = export_program.trace, {"text": "s > 9", "place": "model.py:1", "origin": "model"}
    refused, wrong = "ExportError: the recorded condition 's > 9' does not hold for the example (model.py:1)", []
    for condition, wanted in ((["gt", 3, 9], refused), (["text", "s > 9"], "no error")):

        def trace(*given):
            traced = real(*given)
            traced.guards.append({**added, "condition": condition})
            return traced

        export_program.trace = trace
        try:
            error = error_of(lambda: export_program.export(torch.nn.Linear(4, 4), (X,)))
        finally:
            export_program.trace = real
        wrong += [] if wanted in error else [f"{condition}: {error}"]
    return wrong


class Hooked(torch.nn.Module):
    """A hook changes what the layer takes; the layer is under reentrant checkpointing."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.linear.register_forward_pre_hook(lambda module, given: (given[0] * 2,))

    def forward(self, x):
        return torch.utils.checkpoint.checkpoint(self.linear, x.sin(), use_reentrant=True)


class Renamed(torch.nn.Module):
    """A call with an argument that `forward` does not know, which a hook of the model renames."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.linear.register_forward_pre_hook(lambda _module, _args, kwargs: ((kwargs["given"],), {}), with_kwargs=True)

    def forward(self, x):
        return self.linear(given=x.sin())


def hooks() -> list[str]:
    """A call takes what its caller gives and not what a hook makes of it, and gradients of checkpointing are kept."""
    described = export_program.export(Hooked(), (X,)).description
    inputs = [one["inputs"] for one in described["calls"] if one["module"] == "linear"]
    wrong = [] if inputs == [[["input", {"value": "sin"}]]] else [f"inputs {inputs}"]
    wrong += [f"not kept: {described['not_kept']}"] if described["not_kept"] else []
    described = export_program.export(Renamed(), (X,)).description
    inputs = [one["inputs"] for one in described["calls"] if one["module"] == "linear"]
    return wrong + ([] if inputs == [[["given", {"value": "sin"}]]] else [f"inputs of another name {inputs}"])


class Kept(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.register_buffer("order", torch.arange(4.0))

    def forward(self, x, scale: float = 2.0):
        length = x.shape[0]
        return {"made": self.linear(x) * scale + self.order, "pieces": [x, length]}


def keys_of(value, form: str = "") -> set[str]:
    """The keys of a record, in the form of exported_program_test.cc, which shows that the reader reads those of small.pt2."""
    if isinstance(value, list):
        return set().union(*(keys_of(one, f"{form}/*") for one in value))
    if not isinstance(value, dict) or form == "/fixed":
        return set()
    table = form in ("/tensors", "/symbols", "/valid", "/options/example", "/weights/tensors", "/weights/unsupported")
    found = set() if table or form.endswith("/dict") else {f"{form}/{key}" for key in value}
    names = {key: "*" if table or form.endswith("/dict") else key for key in value}
    return found.union(*(keys_of(one, f"{form}/{names[key]}") for key, one in value.items()))


# Keys that small.pt2 does not have: of other forms of values, of a training program and of models of transformers.
MORE_KEYS = {"/options/evaluates", "/options/attention", "/options/experts", "/weights/source", "/symbols/*/data",
             "/tensors/*/initial/values"}  # fmt: skip


def known_keys() -> list[str]:
    small = pathlib.Path(__file__).parents[2] / "engine/io/exported_program/small.pt2"
    with zipfile.ZipFile(small) as archive:
        name = next(one for one in archive.namelist() if one.endswith("/extra/moonshard.json"))
        known = keys_of(json.loads(archive.read(name))) | MORE_KEYS
    wrong = []
    for module in (NotKept(), TwoPaths(), Kept(), NotInEvaluation()):
        own = keys_of(export_program.export(module, (X,)).description)
        calls = {key for key in own if key.startswith("/calls/") and key.endswith(("/tuple", "/list", "/dict", "/value"))}
        wrong += sorted(own - known - calls)
    return wrong


def other_torch() -> list[str]:
    """Another torch than the versions whose internals the exporter replaces is refused by its version."""
    real, wrong = torch.__version__, []
    for version, refused in (("2.8.1", True), ("2.9.0+cpu", False), ("2.15.0", False), ("2.16.0", True), ("3.0.0a0", True)):
        torch.__version__ = version
        try:
            error = error_of(lambda: runpy.run_path(export_program.__file__))
        finally:
            torch.__version__ = real
        wanted = f"ImportError: torch {version}: the exporter needs torch 2.9 to 2.15" if refused else "no error"
        wrong += [] if error == wanted else [f"{version}: {error}"]
    return wrong


def main() -> int:
    wrong = 0
    for check in (refused_branch, refused_numbers, refused_loop, refused_evaluation, full_disk, command_line, not_kept, two_paths,
                  hooks, any_length, nested_values, condition_of_example, known_keys, other_torch):  # fmt: skip
        for text in check():
            wrong += 1
            print(f"{check.__name__}: {text}")
    return 1 if wrong else 0


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)  # that a size of 1 is fixed
    sys.exit(main())
