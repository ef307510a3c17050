#!/usr/bin/env python3
"""Trains committed programs, and opens what `merge` makes of the runs with transformers, for tests/parity/merged_test.cc.

    check_merged.py MOONSHARD [CASE...]     MOONSHARD: the built program; needs torch, transformers and safetensors

Each CASE, a causal language model of this directory, takes three steps on two ranks under the plan that `suggest` writes. The
merged directory must load with from_pretrained without a missing or an unexpected weight, with the dtype that config.json names,
and its logits must be those that `eval` computes of the directory with the program. Exit status 77: this Python cannot import the
packages; 1: a directory is not as it must be.
"""

import pathlib
import random
import subprocess
import sys
import tempfile

try:
    import torch
    import transformers
    from safetensors.torch import load_file
except (ImportError, OSError) as error:
    print(f"{sys.executable} cannot import what the check needs: {error}")
    sys.exit(77)

HERE = pathlib.Path(__file__).resolve().parent
CASES = ("llama", "gpt2", "mixtral", "qwen3_5_moe", "deepseek_v3", "gpt_oss")
TOLERANCE = 1e-5  # relative to the largest logit


def check(moonshard: str, case: str, scratch: pathlib.Path) -> str:
    """What is wrong; empty: nothing."""

    def run(*words) -> None:
        done = subprocess.run([moonshard, *map(str, words)], capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{' '.join(map(str, words))}\n{done.stdout}{done.stderr}")

    model, program = HERE / case, HERE / case / "program.pt2"
    tokens = random.Random(1).choices(range(3, 48), k=2000)
    (scratch / "tokens.bin").write_bytes(b"".join(token.to_bytes(2, "little") for token in tokens))
    run("suggest", program, "-o", scratch / "plan.lua")
    run("train", model, "--program", program, "--plan", scratch / "plan.lua", "--mesh", "tp=2", "--data", scratch / "tokens.bin",
        "--steps", 3, "--batch", 4, "--sequence", 16, "--lr", 1e-2, "--save", scratch / "run")  # fmt: skip
    run("merge", scratch / "run/step_00000003", scratch / "trained")
    run("eval", scratch / "trained", "--program", program, "--plan", scratch / "plan.lua", "--mesh", "tp=2",
        "--input", model / "inputs.safetensors", "--output", scratch / "out.safetensors")  # fmt: skip
    found, report = transformers.AutoModelForCausalLM.from_pretrained(scratch / "trained", output_loading_info=True)
    if wrong := {kind: names for kind, names in report.items() if names}:
        return f"loaded with {wrong}"
    if found.dtype != found.config.dtype:
        return f"loaded in {found.dtype}, {found.config.dtype} in config.json"
    inputs = load_file(model / "inputs.safetensors")
    before = transformers.AutoModelForCausalLM.from_pretrained(model)
    with torch.no_grad():
        logits, untrained = (one.eval()(input_ids=inputs["input_ids"]).logits for one in (found, before))
    got = load_file(scratch / "out.safetensors")["logits"]
    difference, moved = (((logits - one).abs().max() / logits.abs().max()).item() for one in (got, untrained))
    print(f"{case}: {len(found.state_dict())} tensors, logits differ by {difference:.1e}; from those before training by {moved:.1e}")
    return "" if difference <= TOLERANCE < moved else "the logits are not those of eval, or were not trained"


def main() -> int:
    transformers.utils.logging.disable_progress_bar()
    wrong = 0
    for case in sys.argv[2:] or CASES:
        with tempfile.TemporaryDirectory() as scratch:
            if what := check(sys.argv[1], case, pathlib.Path(scratch)):
                wrong = 1
                print(f"{case}: {what}")
    return wrong


if __name__ == "__main__":
    sys.exit(main())
