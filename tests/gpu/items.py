#!/usr/bin/env python3
"""The checks of a machine with a GPU: each item runs programs of the bundle in processes of their own, within a time limit.

    items.py BUNDLE OUT [--rehearse] [--only NAME ...] [--seconds N]

BUNDLE: the folder that `./dev gpu bundle` made. OUT gets figures.json and a log for each item. An item that fails does
not end the run. The exit code is 1 if an item failed. --rehearse runs the same items without a GPU, on the CPU, and
those that need a GPU are `skipped`. --seconds: an item is not started later than this (default 570).

figures.json: {"gpu", "driver", "torch", "nccl", "commit", "seconds", "items": [{"name", "status": "passed", "failed" or
"skipped", "seconds", "figures": {...}, "error"}]}.
"""

import argparse
import array
import concurrent.futures
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from typing import Any, Callable

ITEMS: list[tuple[str, float, Callable[["Run"], dict[str, Any]]]] = []


class Failed(Exception):
    pass


class Skipped(Exception):
    pass


def item(limit: float):
    """Registers a function as an item that may take `limit` seconds."""

    def register(function: Callable[["Run"], dict[str, Any]]) -> Callable[["Run"], dict[str, Any]]:
        ITEMS.append((function.__name__, limit, function))
        return function

    return register


class Run:
    """One item's view of the machine: programs, models, time that is left, and its log."""

    def __init__(self, bundle: pathlib.Path, out: pathlib.Path, rehearse: bool) -> None:
        self.bundle = bundle
        self.out = out
        self.rehearse = rehearse
        self.device = "cpu" if rehearse else "cuda"
        self.end = 0.0
        self.log: Any = None
        self.writing = threading.Lock()
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="moonshard-gpu-"))
        self.moonshard = str(bundle / "bin" / "moonshard")

    def say(self, text: str) -> None:
        with self.writing:
            self.log.write(text)
            self.log.flush()

    def left(self) -> float:
        left = self.end - time.monotonic()
        if left <= 0:
            raise Failed("the item's time is used up")
        return left

    def start(self, command: list[str], env: dict[str, str] | None = None) -> subprocess.Popen[str]:
        values = dict(os.environ)
        values.update(env or {})
        self.say("$ " + " ".join([f"{k}={v}" for k, v in (env or {}).items()] + command) + "\n")
        return subprocess.Popen(command, env=values, text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT, start_new_session=True)

    def finish(self, processes: list[subprocess.Popen[str]]) -> list[str]:
        """The outputs, in order; those that outlast the item's time are killed."""
        outputs = []
        late = False
        for process in processes:
            try:
                text, _ = process.communicate(timeout=None if late else max(1.0, self.left()))
            except (subprocess.TimeoutExpired, Failed):
                late = True
                end(processes)
                text, _ = process.communicate()
            outputs.append(text)
        self.say("".join(f"{p.args[:3]}: exit code {p.returncode}\n{text}" for p, text in zip(processes, outputs)))
        if late:
            raise Failed("it did not end in time; last lines: " + last_lines(outputs))
        return outputs

    def run(self, command: list[str], env: dict[str, str] | None = None) -> str:
        process = self.start(command, env)
        text = self.finish([process])[0]
        if process.returncode != 0:
            raise Failed(f"exit code {process.returncode}: " + last_lines([text]))
        return text

    def ranks(self, count: int, command: list[str], env: dict[str, str] | None = None) -> list[str]:
        """`command` as `count` ranks that share GPU 0."""
        store = self.folder / f"store{time.monotonic_ns()}"
        started = []
        for rank in range(count):
            mine = {"RANK": str(rank), "WORLD_SIZE": str(count), "LOCAL_RANK": "0", "MOONSHARD_STORE": str(store)}
            mine.update(env or {})
            started.append(self.start(command, mine))
        outputs = self.finish(started)
        codes = [p.returncode for p in started]
        if any(codes):
            raise Failed(f"exit codes {codes}: " + last_lines(outputs))
        return outputs

    def difference(self, actual: pathlib.Path, expected: pathlib.Path) -> float:
        """The largest relative difference of two safetensors files, as `moonshard compare` measures it."""
        text = self.run([self.moonshard, "compare", str(actual), str(expected), "--tolerance", "1e30"])
        found = re.search(r"largest difference ([0-9.e+-]+|inf|nan)", text)
        if not found:
            raise Failed("compare printed no difference: " + last_lines([text]))
        return float(found.group(1))


def last_lines(outputs: list[str]) -> str:
    return " | ".join("; ".join(text.strip().splitlines()[-4:]) for text in outputs)[:1200]


def models(run: Run) -> list[pathlib.Path]:
    return sorted(p.parent for p in (run.bundle / "models").glob("*/config.json"))


def expect_below(difference: float, bound: float, what: str) -> None:
    if not difference <= bound:
        raise Failed(f"{what}: difference {difference:.3g}, allowed {bound:.3g}")


def evaluate(run: Run, model: pathlib.Path, out: str, device: str, *more: str) -> pathlib.Path:
    path = run.folder / out
    run.run([run.moonshard, "eval", str(model), "--input", str(model / "inputs_1.safetensors"), "--output", str(path),
             "--grads", "--device", device, "--mesh", "tp=1", *more])
    return path


def need_gpu(run: Run) -> None:
    if run.rehearse:
        raise Skipped("needs a GPU")


# --- What is there --------------------------------------------------------------------------------------------------
@item(60)
def doctor(run: Run) -> dict[str, Any]:
    text = run.run([run.moonshard, "doctor"])
    if not run.rehearse and not re.search(r"^CUDA +[0-9]+ GPU", text, re.M):
        raise Failed(text)
    return {"text": text.strip().splitlines()}


def gpu_test(run: Run, name: str, before: list[str]) -> dict[str, Any]:
    env = {} if run.rehearse else {"MOONSHARD_REQUIRE_GPU": "1"}
    program = str(run.bundle / "bin" / name)
    process = run.start([*before, program], env)
    text = run.finish([process])[0]
    if run.rehearse and process.returncode == 77:
        return {"skipped": "as a machine without a GPU should"}
    if process.returncode != 0:
        raise Failed(f"exit code {process.returncode}: " + last_lines([text]))
    found = re.search(r"All tests passed \((.*)\)", text)
    return {"passed": found.group(1) if found else last_lines([text])}


@item(60)
def test_mesh(run: Run) -> dict[str, Any]:
    return gpu_test(run, "test_mesh_gpu", [])


@item(60)
def test_loss(run: Run) -> dict[str, Any]:
    return gpu_test(run, "test_loss_gpu", [])


# --- One rank -------------------------------------------------------------------------------------------------------
def of_all_models(run: Run, function: Callable[[pathlib.Path], float]) -> dict[str, float]:
    """Most of a short run is the start of its program, so several run at a time."""
    with concurrent.futures.ThreadPoolExecutor(max(1, min(6, (os.cpu_count() or 2) // 2))) as pool:
        return dict(zip((m.name for m in models(run)), pool.map(function, models(run))))


def against_the_cpu(run: Run, dtype: str, bound: float) -> dict[str, float]:
    """Logits, loss and gradients of every recorded model, beside those of the CPU."""

    def one(model: pathlib.Path) -> float:
        actual = evaluate(run, model, f"{model.name}_{dtype}.safetensors", run.device, "--dtype", dtype)
        expected = evaluate(run, model, f"{model.name}_{dtype}_cpu.safetensors", "cpu", "--dtype", dtype)
        return run.difference(actual, expected)

    figures = of_all_models(run, one)
    for name, difference in figures.items():
        expect_below(difference, bound, name)
    return figures


@item(180)
def eval_float32(run: Run) -> dict[str, Any]:
    return against_the_cpu(run, "float32", 1e-4)


@item(180)
def eval_bfloat16(run: Run) -> dict[str, Any]:
    return against_the_cpu(run, "bfloat16", 0.15)


@item(120)
def verify(run: Run) -> dict[str, Any]:
    def one(model: pathlib.Path) -> float:
        text = run.run([run.moonshard, "verify", str(model), "--device", run.device, "--mesh", "tp=1"])
        return float(len(text.splitlines()))

    return {"models": len(of_all_models(run, one))}


@item(240)
def programs(run: Run) -> dict[str, Any]:
    """Outputs and gradients of exported programs, beside those of the CPU; training on examples, likewise."""

    def one(folder: pathlib.Path) -> float:
        files = []
        for device in (run.device, "cpu"):
            files.append(run.folder / f"{folder.name}_{device}_{len(files)}.safetensors")
            run.run([run.moonshard, "eval", str(folder), "--program", str(folder / "program.pt2"), "--input",
                     str(folder / "inputs.safetensors"), "--output", str(files[-1]), "--grads", "--device", device,
                     "--mesh", "tp=1"])
        return run.difference(files[0], files[1])

    folders = sorted(p.parent for p in (run.bundle / "programs").glob("*/program.pt2"))
    with concurrent.futures.ThreadPoolExecutor(max(1, min(6, (os.cpu_count() or 2) // 2))) as pool:
        figures = dict(zip((f.name for f in folders), pool.map(one, folders)))
    for name in ("classifier", "masked_lm", "regression"):
        data = run.bundle / "examples" / name
        logs = []
        for device in (run.device, "cpu"):
            logs.append(run.folder / f"{name}_{device}_{len(logs)}.jsonl")
            run.run([run.moonshard, "train", f"{data}.pt2", "--data", f"{data}.safetensors", "--steps", "4", "--batch",
                     "4", "--device", device, "--log", str(logs[-1])])
        a, b = losses(logs[0]), losses(logs[1])
        figures["train_" + name] = max(abs(x - y) / abs(y) for x, y in zip(a, b))
    for name, difference in figures.items():
        expect_below(difference, 1e-4, name)
    return figures


# --- Ranks that share one card ---------------------------------------------------------------------------------------
PLANS = {
    "fsdp": 'return plan { extends "llama", fsdp { wrap = "model.layers.*" } }',
    "offload": 'return plan { extends "llama", fsdp { wrap = "model.layers.*", offload = true } }',
    "recompute": 'return plan { extends "llama", recompute { "model.layers.*" } }',
    "ddp": 'return plan { extends "llama", ddp {} }',
    "lora": 'return plan { extends "llama", lora { at = "model.layers.*.{self_attn.{q,v},mlp.{up,down}}_proj", rank = 4 } }',
}
SHARED = [  # name, behind that of a model other than llama_gqa; ranks; mesh; plan; options
    ("tp2", 2, "tp=2", "", []),
    ("tp4", 4, "tp=4", "", []),
    ("tp2_sequence", 2, "tp=2", "", ["--option", "sequence_parallel=true"]),
    ("tp2_loss", 2, "tp=2", "", ["--option", "loss_parallel=true"]),
    ("fsdp2", 2, "dp=2", "fsdp", []),
    ("offload2", 2, "dp=2", "offload", []),
    ("ddp2", 2, "dp_replicate=2", "ddp", []),
    ("tp2_dp2", 4, "dp=2,tp=2", "fsdp", []),
    ("tp2_recompute", 2, "tp=2", "recompute", []),
    ("cp2_ulysses", 2, "cp=2", "", ["--option", "context=ulysses"]),
    ("cp2_ring", 2, "cp=2", "", ["--option", "context=ring"]),
    ("cp4_ring", 4, "cp=4", "", ["--option", "context=ring"]),
    ("cp2_plain_ring", 2, "cp=2", "", ["--option", "context=plain_ring"]),
    ("cp2_tp2_ring", 4, "cp=2,tp=2", "", ["--option", "context=ring", "--option", "sequence_parallel=true"]),
    ("mistral_window8 cp2_ring", 2, "cp=2", "", ["--option", "context=ring"]),
    ("mixtral ep2", 2, "ep=2", "", ["--option", "exchange=true"]),
    ("qwen3_moe ep4", 4, "ep=4", "", ["--option", "exchange=true"]),
    ("mixtral tp2", 2, "tp=2", "", []),
    ("lora_tp2", 2, "tp=2", "lora", []),
]


def shared_card(run: Run, backend: str, env: dict[str, str]) -> dict[str, Any]:
    """Logits, loss and gradients of ranks that share the card, beside those of as many ranks on the CPU, which run at
    the same time."""

    def evaluate_row(row: tuple[str, int, str, str, list[str]], device: str, more: list[str],
                     values: dict[str, str]) -> pathlib.Path:
        label, count, mesh, plan, options = row
        model = run.bundle / "models" / (label.split()[0] if " " in label else "llama_gqa")
        output = run.folder / f"{label.replace(' ', '_')}_{device}_{backend or 'nccl'}.safetensors"
        command = [run.moonshard, "eval", str(model), "--input", str(model / "inputs_1.safetensors"), "--grads",
                   "--dtype", "float32", "--mesh", mesh, "--timeout", "60", *options]
        if plan:
            command += ["--plan", str(run.folder / f"{plan}.lua")]
        run.ranks(count, [*command, "--device", device, "--output", str(output), *more], values)
        return output

    for name, text in PLANS.items():
        (run.folder / f"{name}.lua").write_text(text)
    figures: dict[str, Any] = {}
    failed = []
    with concurrent.futures.ThreadPoolExecutor(max(1, min(3, (os.cpu_count() or 2) // 4))) as pool:
        expected = [pool.submit(evaluate_row, row, "cpu", [], {}) for row in SHARED]
        for row, on_cpu in zip(SHARED, expected):
            label = row[0]
            try:
                actual = evaluate_row(row, run.device, ["--backend", backend] if backend else [], env)
                figures[label] = run.difference(actual, on_cpu.result())
                expect_below(figures[label], 1e-4, label)
            except Failed as error:
                figures[label] = str(error)
                failed.append(label)
    if failed:
        raise Failed(f"{', '.join(failed)} of {len(SHARED)}: " + json.dumps(figures))
    return figures


def nccl_of_the_bundle(run: Run) -> dict[str, str]:
    library = run.bundle / "nccl" / "libnccl.so.2"
    if not library.exists():
        raise Skipped("the bundle has no NCCL that lets ranks share a card (2.30 or later)")
    return {"LD_PRELOAD": str(library), "NCCL_MULTI_RANK_GPU_ENABLE": "1", "NCCL_ALGO": "RING", "NCCL_DEBUG": "WARN",
            "NCCL_IB_DISABLE": "1"}


@item(240)
def nccl_on_one_card(run: Run) -> dict[str, Any]:
    need_gpu(run)
    return shared_card(run, "", nccl_of_the_bundle(run))


@item(240)
def gloo_on_one_card(run: Run) -> dict[str, Any]:
    need_gpu(run)
    return shared_card(run, "gloo", {})


# --- Training -------------------------------------------------------------------------------------------------------
def train(run: Run, *more: str, name: str = "llama_gqa") -> list[str]:
    model = run.bundle / "models" / name
    tokens = run.folder / "tokens.bin"
    if not tokens.exists():
        tokens.write_bytes(array.array("H", ((i * i + 7 * i) // 5 % 61 for i in range(40000))).tobytes())
    return [run.moonshard, "train", str(model), "--data", str(tokens), "--batch", "4", "--sequence", "64", *more]


def losses(log: pathlib.Path) -> list[float]:
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    return [line["loss"] for line in lines if line.get("event") == "step"]


@item(90)
def train_as_on_the_cpu(run: Run) -> dict[str, Any]:
    """20 steps with warmup, clipping and AdamW; the same, stopped after 10 and resumed."""
    gpu, cpu, resumed = (run.folder / f"{n}.jsonl" for n in ("gpu", "cpu", "resumed"))
    run.run(train(run, "--steps", "20", "--device", run.device, "--log", str(gpu)))
    run.run(train(run, "--steps", "20", "--device", "cpu", "--log", str(cpu)))
    save = run.folder / "run"
    schedule = ["--decay-steps", "20", "--save", str(save), "--device", run.device, "--log", str(resumed)]
    run.run(train(run, "--steps", "10", *schedule))
    run.run(train(run, "--steps", "20", "--resume", *schedule))
    a, b, c = losses(gpu), losses(cpu), losses(resumed)
    worst = max(abs(x - y) / abs(y) for x, y in zip(a, b))
    again = max(abs(x - y) / abs(y) for x, y in zip(a, c))
    if len(a) != 20 or len(b) != 20 or len(c) != 20:
        raise Failed(f"{len(a)}, {len(b)}, {len(c)} steps of 20")
    expect_below(worst, 1e-3, "losses against the CPU")
    expect_below(again, 1e-3, "losses after a resume")
    return {"first": a[0], "last": a[-1], "against_cpu": worst, "resumed": again}


@item(60)
def skipped_steps(run: Run) -> dict[str, Any]:
    """Losses that are not finite: the same steps are skipped whether the host waits for the numbers of each step
    (--ahead 0) or the device decides, and the run ends with the error."""
    found = []
    for ahead in ("0", "1"):
        log = run.folder / f"skips_{ahead}.jsonl"
        process = run.start(train(run, "--steps", "9", "--lr", "1e30", "--clip", "0", "--skips", "2", "--ahead", ahead,
                                  "--device", run.device, "--log", str(log)))
        text = run.finish([process])[0]
        if process.returncode != 1 or "consecutive steps were skipped" not in text or "model." not in text:
            raise Failed(f"exit code {process.returncode}: " + last_lines([text]))
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        found.append([line["skipped"] for line in lines if line.get("event") == "step"])
    if found[0] != found[1] or True not in found[0]:
        raise Failed(json.dumps(found))
    return {"skipped": found[0]}


@item(90)
def train_two_ranks(run: Run) -> dict[str, Any]:
    """12 steps of two ranks on one card, stopped after 6 on one mesh and resumed on another, against the CPU."""
    need_gpu(run)
    try:
        env, more = nccl_of_the_bundle(run), []
    except Skipped:
        env, more = {}, ["--backend", "gloo"]
    figures: dict[str, Any] = {}
    expected = run.folder / "two_cpu.jsonl"
    run.run(train(run, "--steps", "12", "--device", "cpu", "--log", str(expected)))
    for first, second in (("tp=2", "dp=2"), ("dp=2", "tp=2")):
        log, save = run.folder / f"two_{first}.jsonl", run.folder / f"two_{first}"
        common = ["--decay-steps", "12", "--save", str(save), "--device", "cuda", "--log", str(log), *more]
        run.ranks(2, train(run, "--steps", "6", "--mesh", first, *common), env)
        run.ranks(2, train(run, "--steps", "12", "--mesh", second, "--resume", *common), env)
        a, b = losses(log), losses(expected)
        if len(a) != 12:
            raise Failed(f"{len(a)} steps of 12")
        figures[f"{first} then {second}"] = max(abs(x - y) / abs(y) for x, y in zip(a, b))
        expect_below(figures[f"{first} then {second}"], 1e-3, first)
    return figures


def synchronisations(run: Run, ranks: int, env: dict[str, str], *more: str, name: str = "llama_gqa") -> dict[str, float]:
    """The waits of the host in one step: those of 12 steps less those of 4, by 8. `for_the_step_before`: for an event,
    behind the numbers of the step before, which the host waits for where it is a whole step ahead of the device;
    `in_the_step`: all others. The places of the calls are in OUT."""
    shim = run.bundle / "lib" / "libcount_synchronisations.so"
    totals: dict[str, list[int]] = {"in_the_step": [], "for_the_step_before": []}
    places = ""
    for steps in (4, 12):
        count = run.folder / f"count{time.monotonic_ns()}"
        preload = ":".join([str(shim)] + ([env["LD_PRELOAD"]] if "LD_PRELOAD" in env else []))
        mine = {**env, "LD_PRELOAD": preload, "COUNT_SYNCHRONISATIONS": str(count)}
        command = train(run, "--steps", str(steps), "--device", "cuda", "--log-every", "1000", *more, name=name)
        run.ranks(ranks, command, mine)
        counts = [p.read_text() for p in sorted(run.folder.glob(count.name + ".*"))]
        of_ranks = []
        for text in counts:
            events = sum(int(n) for n in re.findall(r"^(\d+) cudaEventSynchronize", text, re.M))
            of_ranks.append((int(re.match(r"total (\d+)", text).group(1)) - events, events))
        if not of_ranks or min(others + events for others, events in of_ranks) == 0:
            raise Failed("no wait was counted, not even that for the last step: the calls were not intercepted")
        totals["in_the_step"].append(max(others for others, _ in of_ranks))
        totals["for_the_step_before"].append(max(events for _, events in of_ranks))
        places = "\n".join(counts)
    words = [name, str(ranks), *(m for m in more if not m.startswith("-"))]
    (run.out / ("synchronisations_" + re.sub(r"[^A-Za-z0-9]+", "_", "_".join(words)) + ".txt")).write_text(places)
    return {kind: (counts[1] - counts[0]) / 8 for kind, counts in totals.items()}


@item(150)
def synchronisations_of_a_step(run: Run) -> dict[str, Any]:
    need_gpu(run)
    figures: dict[str, Any] = {}
    for name in ("llama_gqa", "mixtral", "qwen3_moe"):
        figures[name] = synchronisations(run, 1, {}, name=name)
    figures["micro_batches"] = synchronisations(run, 1, {}, "--micro-batches", "2")
    figures["loss_chunk"] = synchronisations(run, 1, {}, "--loss-chunk", "64")
    try:
        env = nccl_of_the_bundle(run)
        for name, mesh in (("tp2", "tp=2"), ("fsdp2", "dp=2"), ("ddp2", "dp_replicate=2")):
            figures[name] = synchronisations(run, 2, env, "--mesh", mesh)
        figures["tp2_sequence"] = synchronisations(run, 2, env, "--mesh", "tp=2", "--option", "sequence_parallel=true")
    except Skipped as reason:
        figures["two_ranks"] = str(reason)
    # The host needs the numbers of tokens of the experts.
    waiting = [name for name, count in figures.items()
               if name not in ("mixtral", "qwen3_moe") and isinstance(count, dict) and
               (count["in_the_step"] > 0 or count["for_the_step_before"] > 1.5)]
    if waiting:
        raise Failed(f"the host waits in a step of {', '.join(waiting)}: {json.dumps(figures)}")
    return figures


SIZE_1B = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 2048, "intermediate_size": 8192,
           "num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64,
           "vocab_size": 128256, "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "max_position_embeddings": 131072,
           "tie_word_embeddings": True, "hidden_act": "silu"}


@item(120)
def train_1b(run: Run) -> dict[str, Any]:
    """Tokens a second of a model with the sizes of Llama 3.2 1B, bfloat16 products, AdamW."""
    folder = run.folder / "1b"
    folder.mkdir()
    config = dict(SIZE_1B)
    steps, batch, sequence = 12, 8, 2048
    if run.rehearse:
        config.update(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
                      num_key_value_heads=2, head_dim=16, vocab_size=256)
        steps, batch, sequence = 3, 2, 64
    (folder / "config.json").write_text(json.dumps(config))
    text = run.folder / "long.txt"
    text.write_text("The quick brown fox jumps over the lazy dog. " * 20000)
    log = run.folder / "1b.jsonl"
    run.run([run.moonshard, "train", str(folder), "--init", "1", "--data", str(text), "--dtype", "bfloat16", "--batch",
             str(batch), "--sequence", str(sequence), "--steps", str(steps), "--device", run.device, "--log", str(log)])
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    last = sorted(line["seconds"] for line in lines if line.get("event") == "step")
    figures = {"batch": batch, "sequence": sequence, "tokens_per_second": batch * sequence / last[len(last) // 2],
               "last_step": [line for line in lines if line.get("event") == "step"][-1]}
    if not run.rehearse:
        peer = run.run([sys.executable, str(run.bundle / "peer_train.py"), str(folder), str(batch), str(sequence),
                        str(steps)])
        figures["peer"] = json.loads(peer.strip().splitlines()[-1])
        figures["ratio_to_peer"] = figures["tokens_per_second"] / figures["peer"]["tokens_per_second"]
    return figures


@item(60)
def layer_of_8b(run: Run) -> dict[str, Any]:
    """Forward and backward of a layer with the sizes of Llama 3 8B as rank 0 of tp=8, beside LibTorch and DTensor."""
    need_gpu(run)
    text = run.run([str(run.bundle / "bin" / "bench_layer"), "60", "gpu"])
    figures: dict[str, Any] = {}
    for tokens, engine, hand, ratio in re.findall(r"x (\d+) tokens: engine ([\d.]+) ms, by hand ([\d.]+) ms, ratio "
                                                  r"([\d.]+)", text):
        figures[tokens] = {"engine_ms": float(engine), "by_hand_ms": float(hand), "ratio": float(ratio)}
    peer = json.loads(run.run([sys.executable, str(run.bundle / "peer_layer.py"), "60", *figures]).splitlines()[-1])
    for tokens, milliseconds in peer["ms"].items():
        figures[tokens]["dtensor_ms"] = milliseconds
        figures[tokens]["ratio_to_dtensor"] = figures[tokens]["engine_ms"] / milliseconds
    return figures


def first_rank(run: Run, backend: str, stop: signal.Signals, timeout: int, env: dict[str, str],
               mesh: str = "tp=2", ranks: int = 2) -> dict[str, Any]:
    """What the first of some ranks that train does once `stop` is sent to the last: seconds, exit code, message."""
    name = f"{backend}_{stop.name}_{ranks}"
    store, log = run.folder / f"store_{name}", run.folder / f"{name}.jsonl"
    command = train(run, "--steps", "100000", "--device", "cuda", "--mesh", mesh, "--timeout", str(timeout), "--log",
                    str(log), *(["--backend", "gloo"] if backend == "gloo" else []))
    started = []
    for rank in range(ranks):
        mine = {"RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_RANK": "0", "MOONSHARD_STORE": str(store), **env}
        started.append(run.start(command, mine))
    # Only the first 256 collectives of a group are compared between the ranks, which would notice by itself.
    until = time.monotonic() + min(25.0, run.left())
    while not log.exists() or log.read_text().count("grad_norm") < 50:
        if any(p.poll() is not None for p in started) or time.monotonic() > until:
            end(started)
            raise Failed("the ranks did not begin to train: " + last_lines(run.finish(started)))
        time.sleep(0.2)
    os.killpg(started[-1].pid, stop)
    begin = time.monotonic()
    figures: dict[str, Any] = {}
    try:
        started[0].wait(timeout=max(1.0, min(35.0, run.left() - 2)))
        figures = {"seconds": round(time.monotonic() - begin, 2), "exit_code": started[0].returncode}
    except subprocess.TimeoutExpired:
        figures = {"seconds": "more than 35"}
    end(started)
    figures["message"] = last_lines(run.finish(started)[:1])
    return figures


def expect_exit_codes(figures: dict[str, Any]) -> dict[str, Any]:
    if any(f.get("exit_code") != 1 for f in figures.values()):
        raise Failed(json.dumps(figures))
    return figures


@item(75)
def killed_rank(run: Run) -> dict[str, Any]:
    """The end of one rank by SIGKILL."""
    need_gpu(run)
    env = nccl_of_the_bundle(run)
    return expect_exit_codes({"nccl": first_rank(run, "nccl", signal.SIGKILL, 600, env),
                              "nccl_two_axes": first_rank(run, "nccl", signal.SIGKILL, 600, env, "dp=2,tp=2", 4),
                              "gloo": first_rank(run, "gloo", signal.SIGKILL, 600, {})})


@item(75)
def stopped_rank(run: Run) -> dict[str, Any]:
    """A rank that no longer answers, and does not end: the other waits for --timeout, which is 10 s here."""
    need_gpu(run)
    env = nccl_of_the_bundle(run)
    return expect_exit_codes({"nccl": first_rank(run, "nccl", signal.SIGSTOP, 10, env),
                              "gloo": first_rank(run, "gloo", signal.SIGSTOP, 10, {})})


def end(processes: list[subprocess.Popen[str]]) -> None:
    for process in processes:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass


# --- Sanitizers -----------------------------------------------------------------------------------------------------
def sanitizer() -> str:
    for place in (shutil.which("compute-sanitizer"), "/usr/local/cuda/bin/compute-sanitizer"):
        if place and os.path.exists(place):
            return place
    raise Skipped("compute-sanitizer is not on this machine")


@item(150)
def memcheck(run: Run) -> dict[str, Any]:
    need_gpu(run)
    return gpu_test(run, "test_loss_gpu", [sanitizer(), "--tool", "memcheck", "--error-exitcode", "9"])


@item(150)
def racecheck(run: Run) -> dict[str, Any]:
    need_gpu(run)
    return gpu_test(run, "test_loss_gpu", [sanitizer(), "--tool", "racecheck", "--error-exitcode", "9"])


def machine(run: Run) -> dict[str, Any]:
    found: dict[str, Any] = {"gpu": None, "driver": None, "torch": None, "nccl": None, "commit": None}
    try:
        text = subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"], text=True,
                              capture_output=True, timeout=30, check=True).stdout
        found["gpu"], found["driver"] = (x.strip() for x in text.splitlines()[0].split(",")[:2])
    except (OSError, subprocess.SubprocessError, IndexError, ValueError):
        pass
    found["torch"] = os.environ.get("MOONSHARD_GPU_TORCH")
    commit = run.bundle / "commit"
    found["commit"] = commit.read_text().strip() if commit.exists() else None
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--rehearse", action="store_true")
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--seconds", type=float, default=570)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    begin = time.monotonic()
    run = Run(options.bundle.resolve(), options.out.resolve(), options.rehearse)
    report = machine(run)
    report["items"] = []
    for name, limit, function in ITEMS:
        if options.only and name not in options.only:
            continue
        entry: dict[str, Any] = {"name": name, "status": "passed", "seconds": 0.0, "figures": {}}
        start = time.monotonic()
        left = begin + options.seconds - start
        with open(options.out / f"{name}.log", "w", encoding="utf-8") as log:
            run.log = log
            run.end = start + min(limit, max(left, 1))
            try:
                if left < 5:
                    raise Skipped("no time was left")
                entry["figures"] = function(run)
            except Skipped as reason:
                entry["status"], entry["error"] = "skipped", str(reason)
            except Failed as error:
                entry["status"], entry["error"] = "failed", str(error)
            except Exception:  # noqa: BLE001, a fault of an item must not end the others
                entry["status"], entry["error"] = "failed", traceback.format_exc()
        entry["seconds"] = round(time.monotonic() - start, 2)
        report["items"].append(entry)
        print(f"{entry['status']:8} {name} {entry['seconds']} s {entry.get('error', '')[:700]} "
              f"{json.dumps(entry['figures'])[:700]}", flush=True)
        report["seconds"] = round(time.monotonic() - begin, 1)
        (options.out / "figures.json").write_text(json.dumps(report, indent=2) + "\n")
    shutil.rmtree(run.folder, ignore_errors=True)
    return 1 if any(e["status"] == "failed" for e in report["items"]) else 0


if __name__ == "__main__":
    sys.exit(main())
