#!/usr/bin/env python3
"""A training step of a small Llama on 2 ranks over Gloo: ours and PyTorch's in turn, in one run; prints JSON.

    train_step.py BUILD/bench/bench_train_step [--hidden 512] [--steps 20] [--only fsdp|tp|overlap|ulysses|ring]

PyTorch: fully_shard of each layer and the root, or parallelize_module as its tutorial has it; transformers' Llama, the
same sizes, batch and AdamW. One thread a rank. All ranks of both are alive throughout; in each round one of them steps
while the other waits, and which goes first alternates. `ratio` is the median over the rounds of ours / PyTorch's, each
the slower of its two ranks. Needs torch and transformers.

`--only overlap` needs neither: ddp in buckets that are summed beside the backward (a), against one sum when it has ended (b).
`--only ulysses` and `--only ring`, too: one row of `--tokens` over cp=2 (a), against one rank of one thread (b).
"""

import argparse
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile

VOCABULARY = 4096


def torch_rank(mode, hidden):
    import time

    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=(mode,))
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=hidden, intermediate_size=hidden * 11 // 4, num_hidden_layers=4, num_attention_heads=8,
        num_key_value_heads=4, vocab_size=VOCABULARY, attn_implementation="sdpa",
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    if mode == "fsdp":
        for layer in model.model.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
    else:
        plan = {"model.embed_tokens": RowwiseParallel(input_layouts=Replicate())}
        for name in ("self_attn.q", "self_attn.k", "self_attn.v", "mlp.gate", "mlp.up"):
            plan[f"model.layers.*.{name}_proj"] = ColwiseParallel()
        for name in ("self_attn.o", "mlp.down"):
            plan[f"model.layers.*.{name}_proj"] = RowwiseParallel()
        plan["lm_head"] = ColwiseParallel(output_layouts=Replicate())
        parallelize_module(model, mesh, plan)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    ids = (torch.arange(2 * 128) % VOCABULARY).view(2, 128)
    for _ in sys.stdin:
        begin = time.perf_counter()
        optimizer.zero_grad()
        logits = model(input_ids=ids, use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(logits[:, :-1].reshape(-1, VOCABULARY), ids[:, 1:].reshape(-1))
        loss.backward()
        optimizer.step()
        print(f"{(time.perf_counter() - begin) * 1e3:.4f}", flush=True)


class Ranks:
    """Processes that make a step for each line they get."""

    def __init__(self, command, count=2):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.ranks = []
        for rank in range(count):
            env = dict(os.environ, RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(count),
                       LOCAL_WORLD_SIZE=str(count), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port),
                       OMP_NUM_THREADS="1")  # fmt: skip
            self.ranks.append(
                subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)
            )

    def step(self):
        for rank in self.ranks:
            rank.stdin.write("step\n")
            rank.stdin.flush()
        return max(float(rank.stdout.readline()) for rank in self.ranks)

    def end(self):
        for rank in self.ranks:
            rank.stdin.close()
            rank.wait()


def ddp(args, folder, bucket):
    plan = os.path.join(folder, f"bucket_{bucket}.lua")
    with open(plan, "w") as file:
        file.write(f'return plan {{ extends "llama", ddp {{ bucket = {bucket} }} }}')
    return Ranks([args.bench, "dp=2", str(args.hidden), plan])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bench")
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--only", choices=("fsdp", "tp", "overlap", "ulysses", "ring"))
    parser.add_argument("--tokens", type=int, default=2048, help="of ulysses and ring")
    parser.add_argument("--bucket", type=int, default=25, help="MiB, of overlap")
    parser.add_argument("--torch-rank", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.torch_rank:
        return torch_rank(args.torch_rank, args.hidden)
    folder = tempfile.mkdtemp()
    names = {"overlap": ("buckets_ms", "at_end_ms"), "ulysses": ("cp_ms", "alone_ms"), "ring": ("cp_ms", "alone_ms")}
    for mode in [args.only] if args.only else ["fsdp", "tp"]:
        if mode == "overlap":
            ours, theirs = (ddp(args, folder, bucket) for bucket in (args.bucket, "false"))
        elif mode in ("ulysses", "ring"):
            step = [str(args.hidden), "llama", str(args.tokens)]
            ours, theirs = Ranks([args.bench, "cp=2", *step, mode]), Ranks([args.bench, "tp=1", *step, ""], 1)
        else:
            ours = Ranks([args.bench, ("dp" if mode == "fsdp" else "tp") + "=2", str(args.hidden)])
            theirs = Ranks([sys.executable, __file__, "-", "--torch-rank", mode, "--hidden", str(args.hidden)])
        pairs = []
        for round_ in range(args.steps + 3):
            first, second = (ours, theirs) if round_ % 2 == 0 else (theirs, ours)
            a, b = first.step(), second.step()
            if round_ >= 3:
                pairs.append((a, b) if first is ours else (b, a))
        ours.end()
        theirs.end()
        result = dict(
            mode=mode, ranks=2, hidden=args.hidden,
            **{
                names.get(mode, ("ours_ms", "torch_ms"))[side]: round(statistics.median(pair[side] for pair in pairs), 2)
                for side in (0, 1)
            },
            ratio=round(statistics.median(a / b for a, b in pairs), 3),
        )  # fmt: skip
        print(json.dumps(result), flush=True)
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
