#!/usr/bin/env python3
"""What an exported program costs against the dispatcher, the C++ model and eager PyTorch; prints JSON, a line a figure.

    ./dev build
    python tests/bench/program.py build/release/tests/bench/bench_program [--only nodes|step|memory|train|load]

nodes    microseconds that the program takes for a node beyond the boxed call of its operator (goal: at most 0.5)
step     forward and backward of a layer of Llama, program / C++ model (goal: at most 1.10)
memory   the largest memory of forward and backward, program / transformers' eager model, both as PyTorch's allocator reports it
         (goal: within 1 %, less memory is within)
train    the same of a training step: forward, backward and the update of AdamW (goal: within 1 %)
load     milliseconds to open a program of 61 layers (goal: below 1000)

Each line has the figure (`value`), its goal, and whether it is met. Exit status 1: a figure is beyond its goal. Times are of one
thread; they hold on a machine that does nothing else. Needs torch and transformers: the Python that `./dev fixtures` makes is
build/fixtures/bin/python.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

import torch
from transformers import LlamaConfig, LlamaForCausalLM

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "engine" / "models" / "program" / "export"))
import export_program  # noqa: E402

ROWS, LENGTH = 4, 128

# Of each line: the figure that has the goal, and the goal, which is the largest value that meets it.
GOALS = {"nodes": ("us_a_node", 0.5), "step": ("ratio", 1.10), "memory": ("ratio", 1.01), "train": ("ratio", 1.01),
         "load": ("load_ms", 1000)}  # fmt: skip


def llama(folder, layers, hidden, vocabulary=2048):
    """A directory with a config.json, and its program."""
    config = LlamaConfig(
        hidden_size=hidden, intermediate_size=hidden * 11 // 4, num_hidden_layers=layers, num_attention_heads=8,
        num_key_value_heads=4, vocab_size=vocabulary, architectures=["LlamaForCausalLM"], dtype="float32",
    )  # fmt: skip
    model = pathlib.Path(folder) / f"llama_{layers}_{hidden}"
    config.save_pretrained(model)
    program = model / "program.pt2"
    export_program.export_model(model, export_program.Options(dtype="float32"), program)
    return model, program


def eager_peak(model, update):
    """Bytes beyond what is there before the step, by the allocator's reports to the profiler; `update`: with AdamW's."""
    eager = LlamaForCausalLM(LlamaConfig.from_pretrained(model)).train()
    ids = (torch.arange(ROWS * LENGTH) % 40 + 2).view(ROWS, LENGTH)
    optimizer = torch.optim.AdamW(eager.parameters(), lr=1e-4)

    def step():
        outputs = eager(input_ids=ids, labels=ids, use_cache=False)
        outputs.loss.backward()
        if update:
            optimizer.step()

    step()
    eager.zero_grad(set_to_none=True)
    with torch.profiler.profile(profile_memory=True) as profile:
        step()
    live = peak = 0
    for event in sorted(allocations(profile.profiler.kineto_results.experimental_event_tree()), key=lambda one: one[0]):
        live += event[1]
        peak = max(peak, live)
    return peak


def allocations(events):
    for event in events:
        if type(event.extra_fields).__name__ == "_ExtraFields_Allocation":
            yield event.start_time_ns, event.extra_fields.alloc_size
        yield from allocations(event.children)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bench")
    parser.add_argument("--only", choices=GOALS)
    args = parser.parse_args()
    torch.set_num_threads(1)

    def bench(*arguments):
        done = subprocess.run([args.bench, *map(str, arguments)], check=True, stdout=subprocess.PIPE, text=True)
        return json.loads(done.stdout)

    beyond = []

    def report(figure, **values):
        name, goal = GOALS[figure]
        met = values[name] <= goal
        if not met:
            beyond.append(figure)
        print(json.dumps({"figure": figure, "value": values[name], "goal": goal, "met": met, **values}), flush=True)

    with tempfile.TemporaryDirectory() as folder:
        if args.only in (None, "nodes"):
            _, program = llama(folder, 4, 64)
            report("nodes", **bench("nodes", program))
        for hidden in (128, 256) if args.only in (None, "step") else ():
            report("step", hidden=hidden, **bench("step", *llama(folder, 1, hidden)))
        if args.only in (None, "memory", "train"):
            model, program = llama(folder, 4, 256)
            peaks = bench("memory", program, ROWS, LENGTH)
            for figure, name in (("memory", "peak_bytes"), ("train", "train_peak_bytes")):
                if args.only in (None, figure):
                    ours, theirs = peaks[name], eager_peak(model, update=figure == "train")
                    report(figure, program_bytes=ours, eager_bytes=theirs, ratio=round(ours / theirs, 4))
        if args.only in (None, "load"):
            _, program = llama(folder, 61, 256)
            report("load", **bench("load", program))
    return 1 if beyond else 0


if __name__ == "__main__":
    sys.exit(main())
