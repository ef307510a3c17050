#!/usr/bin/env python3
"""Records 10 training steps of the checkpoint llama_gqa under PyTorch's fully_shard, on Gloo, for training_runs_test.cc.

    make_training_runs.py [FOLDER]    needs torch and transformers; recorded with torch 2.11, transformers 5.18

For each mesh, dtype and optimizer FOLDER/NAME.safetensors has

    losses [10]                 the mean over the data-parallel ranks
    norms.<parameter> [10]      of the whole gradient, at each step
    grad.<parameter> [10, n]    every k-th element of the whole gradient, k = ceil(elements / 48)
    param.<parameter> [n]       the same elements of the parameter after the steps

and runs.json the settings with what CommDebugMode counted in the second step. The batch of a step is
(arange(rows * 10) * (step % 7 + 3) + 5 * step) % vocabulary, in rows; the data-parallel ranks take equal parts in order.
"""

import json
import pathlib
import sys
import tempfile
from functools import partial

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from safetensors.torch import save_file
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from transformers import LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaRMSNorm

HERE = pathlib.Path(__file__).parent
STEPS, ROWS, TOKENS, KEPT = 10, 8, 9, 48
MESHES = {"shard2": (("dp_shard", 2),), "hsdp2x2": (("dp_replicate", 2), ("dp_shard", 2)),
          "shard2_tp2": (("dp_shard", 2), ("tp", 2))}  # fmt: skip
OPTIMIZERS = {"adamw": dict(lr=1e-3, betas=(0.9, 0.95), eps=1e-4, weight_decay=0.1), "sgd": dict(lr=1e-2, momentum=0.9)}
TP_PLAN = {
    "model.embed_tokens": RowwiseParallel(input_layouts=Replicate()),
    **{f"model.layers.*.self_attn.{n}_proj": ColwiseParallel() for n in "qkv"},
    "model.layers.*.self_attn.o_proj": RowwiseParallel(),
    **{f"model.layers.*.mlp.{n}_proj": ColwiseParallel() for n in ("gate", "up")},
    "model.layers.*.mlp.down_proj": RowwiseParallel(),
    "lm_head": ColwiseParallel(output_layouts=Replicate()),
}


def norm_in_own_dtype(module, x):
    """transformers' norm computes in float32 whatever the model's dtype: not what a run in float64 is for."""
    return torch.nn.functional.rms_norm(x, x.shape[-1:], module.weight, module.variance_epsilon)


def whole(tensor):
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach()


def sampled(tensor):
    flat = whole(tensor).flatten()
    return flat[:: -(-flat.numel() // KEPT)].clone()


def train(rank, store, axes, dtype, optimizer, out):
    torch.set_num_threads(1)
    world = 1
    for _, size in axes:
        world *= size
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    mesh = init_device_mesh("cpu", tuple(size for _, size in axes), mesh_dim_names=tuple(name for name, _ in axes))
    model = LlamaForCausalLM.from_pretrained(HERE / "llama_gqa", dtype=dtype, attn_implementation="sdpa")
    model.train()
    for module in model.modules():
        if isinstance(module, LlamaRMSNorm):
            module.forward = partial(norm_in_own_dtype, module)
    if "tp" in mesh.mesh_dim_names:
        parallelize_module(model, mesh["tp"], TP_PLAN)
    data = mesh[tuple(name for name, _ in axes if name != "tp")]
    for layer in model.model.layers:
        fully_shard(layer, mesh=data)
    fully_shard(model, mesh=data)
    kind = torch.optim.AdamW if optimizer == "adamw" else torch.optim.SGD
    optim = kind(model.parameters(), **OPTIMIZERS[optimizer])
    ranks = data.size()
    part = rank // (world // ranks)
    losses, norms, grads, counts = [], {}, {}, {}
    for step in range(STEPS):
        optim.zero_grad()
        batch = (torch.arange(ROWS * (TOKENS + 1)) * (step % 7 + 3) + 5 * step) % model.config.vocab_size
        rows = batch.view(ROWS, TOKENS + 1).chunk(ranks)[part]
        with CommDebugMode() as comm:
            logits = model(input_ids=rows[:, :TOKENS], use_cache=False).logits
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
            loss.backward()
        if step == 1:
            counts = {str(op).split(".")[-1]: n for op, n in comm.get_comm_counts().items()}
        for name, parameter in model.named_parameters():
            norms.setdefault(name, []).append(whole(parameter.grad).norm())
            grads.setdefault(name, []).append(sampled(parameter.grad))
        optim.step()
        total = loss.detach().clone()
        dist.all_reduce(total)
        losses.append(total / world)
    tensors = {"losses": torch.stack(losses)}
    for name, parameter in model.named_parameters():
        tensors[f"norms.{name}"] = torch.stack(norms[name])
        tensors[f"grad.{name}"] = torch.stack(grads[name])
        tensors[f"param.{name}"] = sampled(parameter)
    if rank == 0:
        save_file(tensors, out)
        pathlib.Path(store + ".json").write_text(json.dumps(counts))
    dist.destroy_process_group()


def main():
    folder = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / "training_runs"
    folder.mkdir(parents=True, exist_ok=True)
    runs = []
    for mesh, axes in MESHES.items():
        for optimizer, settings in OPTIMIZERS.items():
            for dtype in (torch.float32, torch.float64):
                name = f"{mesh}_{optimizer}_{str(dtype).split('.')[-1]}"
                with tempfile.TemporaryDirectory() as scratch:
                    store = scratch + "/store"
                    world = 2 if mesh == "shard2" else 4
                    mp.spawn(train, (store, axes, dtype, optimizer, folder / f"{name}.safetensors"), nprocs=world)
                    counts = json.loads(pathlib.Path(store + ".json").read_text())
                runs.append(dict(name=name, mesh=",".join(f"{a}={n}" for a, n in axes), optimizer=optimizer,
                                 settings=settings, dtype=str(dtype).split(".")[-1], collectives=counts))  # fmt: skip
                print(name, counts, flush=True)
    (folder / "runs.json").write_text(json.dumps(runs, indent=1) + "\n")


if __name__ == "__main__":
    main()
