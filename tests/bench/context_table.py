#!/usr/bin/env python3
"""Compares context parallelism by all-to-all and by a ring with tensor parallelism: what explain predicts for a layer of a
Llama.

    context_table.py [MOONSHARD] [RANKS]    default: build/moonshard and 8 ranks; needs no ranks, weights or package

For each number of query and key heads and each length of the sequence, a row has the bytes that a rank sends for the
activations of a layer in a step (forward and backward, bfloat16, one sequence), for cp with heads exchanged, cp with a ring
in zigzag and of plain chunks, tp, and tp with sequence parallelism, and, except for the rings, the activations at the peak
of a step of two layers. An all-gather or a reduce-scatter sends (n-1)/n of what it is counted for, an all-reduce twice
that, an all-to-all (n-1)/n of a shard of heads: of the forward exchanges, explain counts the shard of tokens, which is
smaller if there are fewer key heads than ranks, so those of the backward, which are counted by shards of heads, stand for
both. The exchanges of a ring are counted as what the rank sends, which is the same on every rank. `fewer` is the kind of
context parallelism that sends fewer bytes.
"""

import json
import pathlib
import subprocess
import sys
import tempfile

import make_checkpoint

HEADS = [(32, 32), (32, 8), (32, 4)]
LENGTHS = [4096, 32768, 131072]
SENT = {"all_gather": 1, "reduce_scatter": 1, "all_reduce": 2, "all_to_all": 1}


RINGS = {"context=ring", "context=plain_ring"}


def explained(moonshard, folder, mesh, options, tokens):
    words = [moonshard, "explain", str(folder), "--mesh", mesh, "--tokens", f"1,{tokens}", "--json"]
    words += [] if RINGS & set(options) else ["--memory"]
    for option in options:
        words += ["--option", option]
    # The first line names the plan that was chosen.
    text = subprocess.run(words, check=True, capture_output=True, text=True).stdout
    return json.loads(text[text.index("{") :])


def sent(step, options, ranks):
    total = 0
    ring = RINGS & set(options)
    directions = step.get("totals", step)["collectives"]
    for kinds in directions.values():
        for kind, count in kinds.items():
            exchanges = kind == "all_to_all"
            counted = directions["backward"][kind] if exchanges and not ring else count
            total += SENT[kind] * counted["bytes"] * (1 if exchanges and ring else (ranks - 1) / ranks)
    return total


def main():
    moonshard = sys.argv[1] if len(sys.argv) > 1 else "build/moonshard"
    ranks = int(sys.argv[2]) if len(sys.argv) > 2 else 8
    ways = [
        ("cp", f"cp={ranks}", ["context=ulysses", "loss_parallel=true"]),
        ("cp, ring", f"cp={ranks}", ["context=ring", "loss_parallel=true"]),
        ("cp, plain ring", f"cp={ranks}", ["context=plain_ring", "loss_parallel=true"]),
        ("tp", f"tp={ranks}", ["loss_parallel=true"]),
        ("tp, sequence", f"tp={ranks}", ["loss_parallel=true", "sequence_parallel=true"]),
    ]
    columns = "".join(f"{name + ' sent':>20}{name + ' peak':>20}" for name, _, _ in ways)
    print(f"{'heads':>8}{'length':>8}{columns}{'fewer':>10}    MiB on {ranks} ranks")
    for heads, kv_heads in HEADS:
        for length in LENGTHS:
            row = f"{heads:>5}/{kv_heads:<2}{length:>8}"
            by_way = {}
            for name, mesh, options in ways:
                per_layer = []
                for layers in (1, 2):
                    with tempfile.TemporaryDirectory() as folder:
                        shape = make_checkpoint.Shape(layers, 4096, 14336, heads, kv_heads, 32000, 500000.0, 1)
                        make_checkpoint.write(pathlib.Path(folder), shape, headers_only=True)
                        # What follows from the parameters does not depend on the tokens.
                        steps = [explained(moonshard, folder, mesh, options, t) for t in (length, 2 * length)]
                    per_layer.append(sent(steps[1], options, ranks) - sent(steps[0], options, ranks))
                by_way[name] = per_layer[1] - per_layer[0]
                row += f"{by_way[name] / 2**20:>20.1f}"
                peak = f"{steps[0]['peak']['by_kind']['activations'] / 2**20:.1f}" if "peak" in steps[0] else "-"
                row += f"{peak:>20}"
            row += f"{'ring' if by_way['cp, ring'] < by_way['cp'] else 'ulysses':>10}"
            print(row, flush=True)


main()
