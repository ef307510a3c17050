#!/usr/bin/env python3
"""The training step of items.train_1b in PyTorch and transformers: the same sizes, dtypes, batch, clipping and AdamW.

    peer_train.py CONFIG_FOLDER BATCH SEQUENCE STEPS      prints JSON: tokens a second of the last steps, peak memory
"""

import json
import sys
import time

import torch
import transformers


def main() -> None:
    folder, batch, sequence, steps = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    config = transformers.AutoConfig.from_pretrained(folder)
    config._attn_implementation = "sdpa"
    torch.manual_seed(0)
    with torch.device("cuda"):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    ids = torch.randint(0, 256, (steps, batch, sequence), device="cuda")
    times = []
    for step in range(steps):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(input_ids=ids[step], labels=ids[step], use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        value = loss.item()
        times.append(time.perf_counter() - begin)
    seconds = sorted(times[-5:])[2]
    print(json.dumps({"tokens_per_second": batch * sequence / seconds, "seconds": seconds, "loss": value,
                      "peak_memory_bytes": torch.cuda.max_memory_allocated(), "torch": torch.__version__,
                      "transformers": transformers.__version__}))


if __name__ == "__main__":
    main()
