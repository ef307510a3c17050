#!/usr/bin/env python3
"""Makes the program fixtures: small Hugging Face checkpoints, the exported program of each, and what transformers computes.

    make_programs.py [OUT [CASE...]]      needs torch, transformers and safetensors (./dev fixtures); default: this directory

Each folder OUT/CASE holds config.json, model.safetensors, program.pt2 (engine/models/program/export), inputs.safetensors
(the program's inputs by name) and expected.safetensors: what the program returns by the names of its outputs, and grad.<parameter>
of the loss. Weights are random, norms and biases too. Everything is float32 on the CPU, computed by the eager model with the
attention that was exported. The case `dtypes`
is a program exported in bfloat16, with what transformers computes of it in each dtype; `modes` a module of one's own whose
operators compute otherwise in training, with its weights in the archives; `drawing` one that has other operators in
evaluation, as a directory of two archives; `sizes` one that computes with its sizes;
`lengths` recurrence and attention of torch.nn; `branches` one with torch.cond, `constants` one whose branches
return an integer; `outputs` a causal language model without a
config that returns more than its logits and loss, with tied weights and a persistent buffer in the archive, and with the losses
of ten steps of training; `nested` a module
whose inputs are in a list and in a dict; `tables` a causal language model with two tables in one module and with dropout;
`hooked` one with reentrant checkpointing and hooks of modules. OUT/llama/inputs is a directory of programs for different sets of inputs,
with files for each set.

tests/parity/examples (OUT/examples) holds programs that are trained with examples, with their weights in the archives: NAME.pt2, NAME.safetensors with
the inputs of 12 examples, and NAME.expected.safetensors with the loss of all examples in one batch and the norm of its gradient.
tests/parity/suggested (OUT/suggested) holds programs with their weights for the plans of `suggest`: NAME.pt2, and NAME.safetensors
with inputs.

The case `tables/torch` makes tables/torch_X_Y.pt2 with the torch X.Y that runs it: 2.9, 2.10 and 2.12.
OUT/deepseek_v3/program_float64.pt2 is exported in float64, which grouped_mm does not take, for curves of training.
The cases `modes`, `drawing`, `sizes`, `lengths`, `branches`, `constants`, `outputs`, `nested`, `tables` and `hooked` are in tests/parity/own_modules. OUT/reference/NAME.pt2 are programs of the checkpoints in tests/parity/NAME, one of each architecture that has a C++ model.
"""

import json
import pathlib
import re
import shutil
import sys
import tempfile
import zipfile
from unittest import mock

import torch
import transformers
from safetensors.torch import save_file

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[2] / "engine" / "models" / "program" / "export"))
sys.path.insert(0, str(HERE.parent))

import export_program  # noqa: E402
import hugging_face  # noqa: E402
import stand_ins  # noqa: E402

SMALL = dict(vocab_size=48, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=4, max_position_embeddings=64, pad_token_id=0, bos_token_id=1, eos_token_id=2)  # fmt: skip
GROUPED = {**SMALL, "num_key_value_heads": 2}
LATENT = dict(q_lora_rank=16, kv_lora_rank=8, qk_rope_head_dim=4, qk_nope_head_dim=8, v_head_dim=8)

CASES: dict[str, tuple[str, dict]] = {
    "deepseek_v3": ("deepseek_v3", {**SMALL, **LATENT, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1,
                                    "topk_group": 1, "moe_intermediate_size": 16, "first_k_dense_replace": 1,
                                    "n_shared_experts": 1}),
    "falcon_h1": ("falcon_h1", {**GROUPED, "mamba_d_ssm": 64, "mamba_n_heads": 4, "mamba_d_head": 16, "mamba_n_groups": 1,
                                "mamba_d_state": 8, "mamba_chunk_size": 8}),
    "nemotron_h": ("nemotron_h", {**GROUPED, "layers_block_type": ["mamba", "attention", "mlp"], "mamba_num_heads": 4,
                                  "mamba_head_dim": 16, "n_groups": 2, "ssm_state_size": 8, "chunk_size": 8,
                                  "head_dim": 8}),
    "qwen3_5": ("qwen3_5_text", {**GROUPED, "head_dim": 8, "layer_types": ["linear_attention", "full_attention"],
                                 "linear_key_head_dim": 8, "linear_value_head_dim": 8, "linear_num_key_heads": 4,
                                 "linear_num_value_heads": 4}),
    "qwen3_5_moe": ("qwen3_5_moe_text", {**GROUPED, "head_dim": 8, "layer_types": ["linear_attention", "full_attention"],
                                         "linear_key_head_dim": 8, "linear_value_head_dim": 8, "linear_num_key_heads": 4,
                                         "linear_num_value_heads": 4, "num_experts": 4, "num_experts_per_tok": 2,
                                         "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16}),
    "gpt_oss": ("gpt_oss", {**GROUPED, "head_dim": 8, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 8}),
    "llama4": ("llama4_text", {**GROUPED, "head_dim": 8, "num_local_experts": 4, "num_experts_per_tok": 1,
                               "intermediate_size_mlp": 48, "moe_layers": [1], "attention_chunk_size": 16}),
    "glm4_moe": ("glm4_moe", {**GROUPED, "head_dim": 8, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1,
                              "topk_group": 1, "moe_intermediate_size": 16, "first_k_dense_replace": 1}),
    "olmo2": ("olmo2", GROUPED),
    "gpt2": ("gpt2", dict(vocab_size=48, n_embd=32, n_layer=2, n_head=4, n_positions=64, n_inner=48, resid_pdrop=0.0,
                          embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=1, eos_token_id=2)),
    "t5": ("t5", dict(vocab_size=48, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, dropout_rate=0.0,
                      decoder_start_token_id=0, pad_token_id=0, eos_token_id=1)),
    "qwen2_5_vl": ("qwen2_5_vl", {}),
    "llama": ("llama", GROUPED),
    "mixtral": ("mixtral", {**GROUPED, "num_local_experts": 4, "num_experts_per_tok": 2}),
}  # fmt: skip

# Of those that are not exported with what a text model takes; the grid of the images is part of the program.
INPUTS = {"qwen2_5_vl": ["input_ids", "pixel_values", "image_grid_thw", "position_ids", "labels"]}

# A program that is exported in bfloat16, and what the model computes in each of these types.
DTYPES = ("bfloat16", "float32", "float64")
DTYPES_HERE = HERE / "dtypes"
OWN_MODULES = HERE.parent / "own_modules"


# Checkpoints of tests/parity, one of each architecture that has a C++ model.
REFERENCE = ("baichuan1", "baichuan2", "decilm", "gemma3_softcap", "llama_gqa", "ministral3_yarn", "mistral_window8", "mixtral",
             "phi3_gqa", "phi_partial", "qwen2_tied", "qwen3_head_dim12", "qwen3_moe")  # fmt: skip


def shrunk_vl(config: transformers.PretrainedConfig) -> None:
    """Qwen2.5-VL: two layers of text and of vision."""
    text, vision = config.text_config, config.vision_config
    for name, value in {**GROUPED, "image_token_id": 5}.items():
        setattr(text, name, value)
    text.rope_parameters = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 1, 2]}
    text.layer_types = ["full_attention"] * 2
    for name, value in dict(depth=2, hidden_size=32, intermediate_size=48, num_heads=8, out_hidden_size=32, patch_size=4,
                            spatial_merge_size=2, window_size=16, fullatt_block_indexes=[1]).items():
        setattr(vision, name, value)
    config.image_token_id, config.video_token_id, config.vision_start_token_id = 5, 6, 7


def random_values(model: torch.nn.Module) -> None:
    """Norms and biases away from ones and zeros, everything of a size that keeps numbers moderate."""
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() < 2:
                parameter.add_(0.1 * noise)
            else:
                parameter.copy_(0.15 * noise)


def slim(path: pathlib.Path, bare: bool = False) -> None:
    """Leaves out what nothing reads: stack traces of the model's Python; `bare`: what Python's torch.export.load needs and
    the engine does not too: example inputs, strides and expressions of values and the Python modules of classes."""
    with zipfile.ZipFile(path) as archive:
        entries = [(info, archive.read(info)) for info in archive.infolist()
                   if not bare or "/sample_inputs/" not in info.filename]  # fmt: skip
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for info, data in entries:
            if info.filename.endswith("models/model.json"):
                model = without_keys(json.loads(data), ("stack_trace", "torch_fn"))
                if bare:
                    strip(model)
                data = json.dumps(model, separators=(",", ":")).encode()
            archive.writestr(zipfile.ZipInfo(info.filename), data)


def without_keys(value, names):
    if isinstance(value, dict):
        return {k: without_keys(v, names) for k, v in value.items() if k not in names}
    return [without_keys(v, names) for v in value] if isinstance(value, list) else value


def strip(model: dict) -> None:
    graph = model["graph_module"]["graph"]
    unread = ("strides", "storage_offset", "layout", "device", "requires_grad", "expr_str")
    graph["tensor_values"] = without_keys(graph["tensor_values"], unread)
    graph["nodes"] = without_keys(graph["nodes"], ("is_hop_single_tensor_return",))
    for node in graph["nodes"]:
        metadata = node["metadata"]
        if "nn_module_stack" in metadata:
            metadata["nn_module_stack"] = re.sub(r"[\w.]+\.(\w+)(?=;|$)", r"\1", metadata["nn_module_stack"])


def make(out: pathlib.Path, case: str) -> None:
    kind, changes = CASES[case]
    config = transformers.AutoConfig.for_model(kind, **changes)
    if case == "qwen2_5_vl":
        shrunk_vl(config)
    folder = out / case
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    model = hugging_face.build(config, torch.float32)
    random_values(model)
    model.save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    program = folder / "program.pt2"
    exported = export_program.export_model(folder, export_program.Options(dtype="float32", inputs=INPUTS.get(case)), program)
    slim(program)

    names = [one["name"] for one in exported.description["inputs"]]
    given = [*names, *exported.description["fixed"]]
    # With images the batch is part of the program.
    inputs, expected = computed(folder, torch.float32, given, 3 if case in INPUTS else 4)
    save_file({name: inputs[name].contiguous() for name in names}, folder / "inputs.safetensors")
    save_file({name: one.float().contiguous() for name, one in expected.items()}, folder / "expected.safetensors")
    sizes = {path.name: path.stat().st_size // 1024 for path in folder.iterdir()}
    print(case, float(expected["loss"]), exported.description["notes"], sizes, flush=True)


def computed(folder: pathlib.Path, dtype: torch.dtype, names: list[str], batch: int) -> tuple[dict, dict]:
    """Inputs, and what the model computes in this type: outputs and gradients by name."""
    real = hugging_face.build(hugging_face.load_config(folder), dtype, folder=folder).train()
    inputs, _ = hugging_face.example_inputs(real, names, batch, 12, seed=3)
    results = real(**inputs, **hugging_face.forward_options(real))
    results.loss.backward()
    expected = {name: results[name].detach() for name in ("loss", "logits") if name in results}
    expected |= {f"grad.{name}": p.grad for name, p in real.named_parameters() if p.grad is not None}
    return inputs, expected


def make_dtypes(folder: pathlib.Path) -> None:
    """Gemma3, which has norms and softmax in float32 whatever its type, and windows."""
    config = transformers.AutoConfig.for_model(
        "gemma3_text", **{**GROUPED, "hidden_size": 16, "intermediate_size": 24, "head_dim": 4, "query_pre_attn_scalar": 4,
                          "vocab_size": 32, "sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]})  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    model = hugging_face.build(config, torch.float32)
    random_values(model)
    model.save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    program = folder / "bfloat16.pt2"
    export_program.export_model(folder, export_program.Options(dtype="bfloat16"), program)
    slim(program)
    for dtype in DTYPES:
        inputs, expected = computed(folder, getattr(torch, dtype), ["input_ids", "labels"], 3)
        save_file(inputs, folder / "inputs.safetensors")
        save_file({name: one.float().contiguous() for name, one in expected.items()}, folder / f"expected_{dtype}.safetensors")
        print(dtype, float(expected["loss"]), flush=True)


class Frozen(torch.nn.BatchNorm1d):
    """Batch norm that keeps its statistics in training too."""

    def train(self, mode: bool = True):
        return super().train(False)


class Modes(torch.nn.Module):
    """Everything that computes otherwise in training: dropouts, norms with statistics, attention, recurrence."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(24, 8)
        self.batch_norm = torch.nn.BatchNorm1d(8)
        self.frozen = Frozen(8)
        self.instance_norm = torch.nn.InstanceNorm1d(8, affine=True, track_running_stats=True)
        self.dropout = torch.nn.Dropout(0.5)
        self.in_place = torch.nn.Dropout(0.5, inplace=True)
        self.alpha_dropout = torch.nn.AlphaDropout(0.5)
        self.feature_dropout = torch.nn.Dropout1d(0.5)
        self.rrelu = torch.nn.RReLU()
        self.gru = torch.nn.GRU(8, 8, num_layers=2, dropout=0.5, batch_first=True)
        self.lstm = torch.nn.LSTM(8, 8, num_layers=2, dropout=0.5, batch_first=True)
        self.head = torch.nn.Linear(8, 24)

    def forward(self, input_ids, labels):
        x = self.embed(input_ids).transpose(1, 2)
        x = self.instance_norm(self.frozen(self.batch_norm(x)))
        x = self.rrelu(self.feature_dropout(self.alpha_dropout(self.in_place(self.dropout(x) * 2)))).transpose(1, 2)
        x = x + self.gru(x)[0] + self.lstm(x)[0]
        heads = x.unflatten(-1, (2, 4)).transpose(1, 2)
        heads = torch.nn.functional.scaled_dot_product_attention(heads, heads, heads, dropout_p=0.5 if self.training else 0.0)
        x = x + heads.transpose(1, 2).flatten(2)
        logits = self.head(x)
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        return {"logits": logits, "loss": loss}


class Drawing(torch.nn.Module):
    """Stochastic depth, whose graph in evaluation has other operators, and dropout that is on in both modes."""

    def __init__(self) -> None:
        super().__init__()
        self.up = torch.nn.Linear(8, 16)
        self.down = torch.nn.Linear(16, 8)

    def forward(self, x):
        h = self.up(x)
        if self.training:
            h = h * (torch.rand(x.shape[0], 1) < 0.5)
        made = self.down(h)
        return {"made": made, "noisy": torch.nn.functional.dropout(made, 0.5)}


class Pair(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)

    def forward(self, a, b):
        return self.linear(a) + b


class Sizes(torch.nn.Module):
    """Arithmetic on one size twice, an operator whose number of results is a size, one tensor for two arguments, a
    complex parameter, and gradients that are switched off and on again."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(24, 8)
        self.pair = Pair()
        self.scale = torch.nn.Parameter(torch.linspace(0.5, 1.5, 8))
        self.turn = torch.nn.Parameter(torch.tensor([0.8 + 0.6j, 1.2 - 0.5j], dtype=torch.complex64))

    def forward(self, input_ids):
        n = input_ids.shape[1]
        x = self.embed(input_ids) * ((n * n + (n + n)) / 48)
        x = torch.cat([part * (i + 1) for i, part in enumerate(torch.unsafe_split(x, 2, 1))], 1)
        x = self.pair(x, x)
        with torch.no_grad():
            x = x * 2
            with torch.enable_grad():
                x = x * self.scale
        turned = torch.view_as_complex(x.unflatten(-1, (2, 2, 2)).contiguous()) * self.turn[:, None]
        return {"made": torch.view_as_real(turned).flatten(2)}


class Lengths(torch.nn.Module):
    """Recurrence and attention of torch.nn, for every batch and length."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = torch.nn.LSTM(8, 6, num_layers=2, bidirectional=True, batch_first=True)
        self.gru = torch.nn.GRU(12, 8, batch_first=True)
        self.rnn = torch.nn.RNN(8, 8)
        self.attention = torch.nn.MultiheadAttention(8, 2, batch_first=True)
        self.layer = torch.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)

    def forward(self, x):
        x = self.gru(self.lstm(x)[0])[0]
        x = self.rnn(x.transpose(0, 1))[0].transpose(0, 1)
        return {"made": self.layer(x + self.attention(x, x, x, need_weights=False)[0])}


class Outputs(torch.nn.Module):
    """A causal language model whose loss is that of the next tokens, and which returns its hidden states, an auxiliary
    loss that is not part of the loss, and the most likely tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(24, 8)
        self.norm = torch.nn.LayerNorm(8)
        self.up = torch.nn.Linear(8, 16)
        self.down = torch.nn.Linear(16, 8)
        self.lm_head = torch.nn.Linear(8, 24, bias=False)
        self.lm_head.weight = self.embed.weight
        self.register_buffer("scale", torch.linspace(0.5, 1.5, 8))

    def forward(self, input_ids, labels):
        x = self.embed(input_ids) * self.scale
        x = x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))
        logits = self.lm_head(x)
        targets = torch.nn.functional.pad(labels, (0, 1), value=-100)[..., 1:]
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
        return {"loss": loss, "logits": logits, "hidden": x, "aux_loss": x.square().mean(), "tokens": logits.argmax(-1)}


class Nested(torch.nn.Module):
    """Inputs in a list and in a dict, one module at two paths, and among the outputs an input and numbers: of these, those
    that are computed from sizes are outputs of the program, and truth values and constants are not."""

    def __init__(self) -> None:
        super().__init__()
        self.first = Mlp(16)
        self.second = self.first
        self.mix = torch.nn.Linear(8, 8)

    def forward(self, parts, scales):
        x = self.first(parts[0]) + self.second(parts[1]) * scales["wide"]
        n = x.shape[1]
        return {"made": self.mix(x) + scales["narrow"], "given": parts[1], "length": n, "half": n * 0.5, "ratio": n / x.shape[0],
                "three": n - n + 3, "long": n > 4, "width": x.shape[2], "factor": 1.5, "flag": True}  # fmt: skip


def make_nested(folder: pathlib.Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    model = Nested()
    random_values(model)

    def inputs(batch, length):
        parts = [torch.randn(batch, length, 8) for _ in range(2)]
        return {"parts": parts, "scales": {"wide": torch.randn(batch, length, 8), "narrow": torch.randn(batch, length, 1)}}

    export_program.export(model, (), inputs(2, 6), folder / "program.pt2", weights=True)
    slim(folder / "program.pt2", bare=True)
    given = inputs(3, 5)
    flat = dict(zip(export_program.input_names(given), torch.utils._pytree.tree_leaves(given), strict=True))
    save_file(flat, folder / "inputs.safetensors")
    results = model(**given)
    (results["made"] * torch.linspace(-1, 1, 8)).sum().backward()
    made = {name: torch.tensor(one, dtype=torch.float64) if isinstance(one, float) else torch.as_tensor(one)
            for name, one in results.items() if name not in ("long", "width", "factor", "flag")}  # fmt: skip
    expected = {name: one.detach().clone() for name, one in made.items()}
    expected |= {f"grad.{name}": p.grad.clone() for name, p in model.named_parameters()}
    save_file(expected, folder / "expected.safetensors")
    print("nested", results["made"].sum().item(), flush=True)


class Tokens(torch.nn.Embedding):
    """The table of tokens, and one of positions beside it."""

    def __init__(self) -> None:
        super().__init__(24, 8)
        self.positions = torch.nn.Parameter(torch.zeros(16, 8))

    def forward(self, ids):
        places = torch.arange(ids.shape[1], device=ids.device)
        return super().forward(ids), torch.nn.functional.embedding(places, self.positions)


class Tables(torch.nn.Module):
    """A causal language model with dropout, whose forward counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.embed = Tokens()
        self.up = torch.nn.Linear(8, 16)
        self.dropout = torch.nn.Dropout(0.5)
        self.down = torch.nn.Linear(16, 8)
        self.lm_head = torch.nn.Linear(8, 24, bias=False)

    def forward(self, input_ids, labels):
        self.calls += 1
        tokens, places = self.embed(input_ids)
        x = tokens + places
        x = x + self.down(self.dropout(torch.nn.functional.gelu(self.up(x))))
        logits = self.lm_head(x)
        targets = torch.nn.functional.pad(labels, (0, 1), value=-100)[..., 1:]
        return {"loss": torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten()), "logits": logits}


class Leaving(torch.nn.Module):
    """A causal language model that returns what its layers make: a plan may leave these outputs sharded, in several
    layouts. Its head has another name than usual, and its logits are not the head's output."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(24, 8)
        self.up = torch.nn.Linear(8, 16)
        self.fused = torch.nn.Linear(8, 32)
        self.odd = torch.nn.Linear(8, 10)
        self.down = torch.nn.Linear(16, 8)
        self.score = torch.nn.Linear(8, 24, bias=False)

    def forward(self, input_ids, labels):
        x = self.embed(input_ids)
        up = self.up(x)
        hidden = x + self.down(torch.nn.functional.gelu(up))
        logits = torch.tanh(self.score(hidden) / 3) * 3
        targets = torch.nn.functional.pad(labels, (0, 1), value=-100)[..., 1:]
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
        return {"loss": loss, "logits": logits, "up": up, "heads": up.view(*up.shape[:2], -1, 4), "turned": up.transpose(1, 2),
                "fused": self.fused(x), "odd": self.odd(x), "hidden": hidden}  # fmt: skip


def make_outputs(folder: pathlib.Path, model: torch.nn.Module, evaluation: bool) -> None:
    """Exported in training; expected: results and gradients, in evaluation mode if `evaluation`."""
    folder.mkdir(parents=True, exist_ok=True)
    random_values(model)
    ids = torch.arange(24).reshape(4, 6) * 7 % 24
    inputs = {"input_ids": ids, "labels": ids.clone()}
    save_file(inputs, folder / "inputs.safetensors")
    export_outputs(folder / "program.pt2", model, inputs)
    results = model.train(not evaluation)(**inputs)
    results["loss"].backward()
    expected = {name: one.detach().clone() for name, one in results.items()}
    expected |= {f"grad.{name}": p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    save_file({name: one.contiguous() for name, one in expected.items()}, folder / "expected.safetensors")
    print(folder.name, float(results["loss"].detach()), flush=True)


def export_outputs(program: pathlib.Path, model: torch.nn.Module, inputs: dict) -> None:
    export_program.export(model, (), inputs, program, weights=True,
                          kinds=lambda name: {"input_ids": "ids", "labels": "labels"}[name])  # fmt: skip
    slim(program, bare=True)


def make_curve(folder: pathlib.Path, model: torch.nn.Module) -> None:
    """Ten steps of PyTorch's AdamW as `moonshard train` takes them, each with all rows of the tokens: 8 rows of 12 tokens, and
    one token more, which is the target of the last. Losses are those of the next tokens, norms those before clipping."""
    tokens = torch.randint(24, (97,), generator=torch.Generator().manual_seed(4))
    ids, targets = tokens[:-1].view(8, 12), tokens[1:]
    matrices = [one for one in model.parameters() if one.dim() > 1]
    vectors = [one for one in model.parameters() if one.dim() < 2]
    optimizer = torch.optim.AdamW([{"params": matrices}, {"params": vectors, "weight_decay": 0.0}], lr=0.01, betas=(0.9, 0.95),
                                  weight_decay=0.1)  # fmt: skip
    losses, norms = [], []
    for _ in range(10):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(ids, ids)["logits"].flatten(0, 1), targets)
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.12))
        losses.append(loss.detach())
        optimizer.step()
    save_file({"tokens": tokens}, folder / "curve_tokens.safetensors")
    save_file({"losses": torch.stack(losses), "norms": torch.stack(norms)}, folder / "curve.safetensors")
    print(folder.name, "curve", float(losses[0]), float(losses[-1]), flush=True)


def make_of_torch(folder: pathlib.Path, model: torch.nn.Module) -> None:
    """The program of make_outputs as the running torch writes it, beside that of the usual version."""
    random_values(model)
    version = "_".join(torch.__version__.split(".")[:2])
    ids = torch.arange(24).reshape(4, 6) * 7 % 24
    export_outputs(folder / f"torch_{version}.pt2", model, {"input_ids": ids, "labels": ids.clone()})
    print(folder.name, torch.__version__, flush=True)


class Balanced(Outputs):
    """A causal language model whose loss has an auxiliary term, as that of a mixture of experts."""

    def forward(self, input_ids, labels):
        results = super().forward(input_ids, labels)
        return {"loss": results["loss"] + 0.5 * results["aux_loss"], "logits": results["logits"]}


class Hooked(torch.nn.Module):
    """A causal language model with a block under reentrant checkpointing, and with hooks that change what a module takes
    and what it returns."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(24, 8)
        self.block = Mlp(16)
        self.mix = torch.nn.Linear(8, 8)
        self.lm_head = torch.nn.Linear(8, 24, bias=False)
        self.mix.register_forward_pre_hook(lambda module, given: (given[0] * 2,))
        self.mix.register_forward_hook(lambda module, given, made: made.tanh() + 0.5)

    def forward(self, input_ids, labels):
        x = self.embed(input_ids)
        x = x + torch.utils.checkpoint.checkpoint(self.block, x, use_reentrant=True)
        logits = self.lm_head(self.mix(x))
        targets = torch.nn.functional.pad(labels, (0, 1), value=-100)[..., 1:]
        return {"loss": torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten()), "logits": logits}


# Whether the expected results are those in evaluation mode.
OUTPUTS = {"outputs": (Outputs, False), "leaving": (Leaving, False), "balanced": (Balanced, False), "tables": (Tables, True),
           "hooked": (Hooked, False)}  # fmt: skip


def make_lengths(folder: pathlib.Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    model = Lengths()
    export_program.export(model, (), {"x": torch.randn(2, 5, 8)}, folder / "program.pt2", weights=True, shardable=False)
    slim(folder / "program.pt2", bare=True)
    expected = {}
    for batch, length in ((2, 5), (1, 1), (1, 4), (3, 1), (3, 7)):
        model.zero_grad()
        x = torch.randn(batch, length, 8)
        made = model(x)["made"]
        (made * torch.linspace(-1, 1, 8)).sum().backward()
        name = f"{batch}x{length}"
        expected |= {f"x.{name}": x, f"made.{name}": made.detach(), f"grad.{name}": model.lstm.weight_hh_l0.grad.clone()}
    save_file(expected, folder / "expected.safetensors")
    print("lengths", made.sum().item(), flush=True)


class Mlp(torch.nn.Module):
    def __init__(self, inner: int) -> None:
        super().__init__()
        self.up = torch.nn.Linear(8, inner)
        self.down = torch.nn.Linear(inner, 8)

    def forward(self, x):
        return self.down(torch.relu(self.up(x)))


class Branches(torch.nn.Module):
    """Branches by the sum of the input and by its length, one inside another; a module that both branches call, tensors
    and sizes from outside of a branch, two results, modes inside branches, and dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(8)
        self.wide, self.narrow, self.long, self.short = Mlp(16), Mlp(8), Mlp(12), Mlp(4)
        self.shared = torch.nn.Linear(8, 8)
        self.gate = torch.nn.Linear(8, 4)
        self.register_buffer("shift", torch.linspace(-1, 1, 8))

    def forward(self, x):
        h = self.norm(x)
        batch, length, _ = x.shape

        def positive(y):
            with torch.autocast("cpu", enabled=False):
                scaled = y.float() * 1.5
            return self.shared(self.wide(scaled)) + self.shift, y * 0.5

        def negative(y):
            made = self.narrow(y) * h.view(batch, length, -1)
            made = torch.cond(self.gate(x).sum() > 0, lambda z: self.shared(z), lambda z: z.sin() + length, (made,))
            return made, made * 2

        def longer(y):
            with torch.no_grad():
                scale = y.abs().mean()
            return self.long(y) * scale

        def shorter(y):
            return torch.dropout(self.short(y), 0.5, self.training)

        a, b = torch.cond(x.sum() > 0, positive, negative, (h,))
        x = x + a * b
        return {"made": x + torch.cond(length > 4, longer, shorter, (x,))}


def make_branches(folder: pathlib.Path) -> None:
    """Exported in training; expected: results and gradients in evaluation, for an input of every branch."""
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    model = Branches()
    random_values(model)
    export_program.export(model, (), {"x": torch.randn(2, 6, 8)}, folder / "program.pt2", weights=True)
    slim(folder / "program.pt2", bare=True)
    expected = {}
    model.eval()
    for sum_, gate, length in ((1, 0, 6), (1, 0, 3), (-1, 1, 6), (-1, -1, 3)):
        model.zero_grad()
        while True:
            x = torch.randn(2, length, 8)
            if x.sum() * sum_ > 1 and (gate == 0 or model.gate(x).sum() * gate > 1):
                break
        made = model(x)["made"]
        (made * torch.linspace(-1, 1, 8)).sum().backward()
        name = f"{'positive' if sum_ > 0 else 'negative'}{length}"
        expected |= {f"x.{name}": x, f"made.{name}": made.detach()}
        # torch.cond gives zeros to the parameters of the branch that did not run.
        expected |= {f"grad.{name}.{path}": p.grad.clone() for path, p in model.named_parameters()
                     if p.grad is not None and p.grad.any()}  # fmt: skip
    save_file(expected, folder / "expected.safetensors")
    print("branches", made.sum().item(), flush=True)


class Constants(torch.nn.Module):
    """Branches that return an integer between two tensors. One predicate is true, the other is false."""

    def __init__(self) -> None:
        super().__init__()
        self.block = Mlp(16)

    def forward(self, x):
        width = x.shape[2]
        positive = x.sum() > 0

        def block(y):
            return self.block(y), width, y * 2

        def other(y):
            return y.sin(), 8, y + 1

        a, n, b = torch.cond(positive, block, other, (x,))
        c, m, d = torch.cond(~positive, block, other, (x,))
        return {"made": (a.view(-1, n) * m).view(x.shape) + b + c / d.exp()}


def make_constants(folder: pathlib.Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    model = Constants()
    random_values(model)
    inputs = {"x": torch.rand(2, 6, 8)}
    export_program.export(model, (), inputs, folder / "program.pt2", weights=True)
    slim(folder / "program.pt2", bare=True)
    inputs = {"x": torch.rand(3, 5, 8)}
    save_file(inputs, folder / "inputs.safetensors")
    # torch's own has no backward for branches that return an integer.
    with mock.patch.object(torch, "cond", lambda predicate, a, b, operands: (a if predicate else b)(*operands)):
        made = model(**inputs)["made"]
    (made * torch.linspace(-1, 1, 8)).sum().backward()
    save_file({"made": made.detach(), **{f"grad.{name}": p.grad for name, p in model.named_parameters()}},
              folder / "expected.safetensors")  # fmt: skip
    print("constants", made.sum().item(), flush=True)


def make_sizes(folder: pathlib.Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    model = Sizes()
    ids = {length: torch.arange(2 * length).reshape(2, length) % 24 for length in (5, 6)}
    export_program.export(model, (), {"input_ids": ids[6]}, folder / "program.pt2", weights=True, shardable=False,
                          kinds=lambda name: "ids")  # fmt: skip
    slim(folder / "program.pt2", bare=True)
    expected = {}
    for length in ids:
        model.zero_grad()
        made = model(ids[length])["made"]
        made.square().sum().backward()
        expected |= {f"ids.{length}": ids[length], f"made.{length}": made.detach(),
                     f"grad.{length}": torch.view_as_real(model.turn.grad).clone(),
                     f"scale_grad.{length}": model.scale.grad.clone()}  # fmt: skip
        assert model.embed.weight.grad is None
    save_file(expected, folder / "expected.safetensors")
    print("sizes", made.sum().item(), flush=True)


def make_drawing(folder: pathlib.Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    module, x = Drawing(), torch.randn(64, 8)
    export_program.export(module, (x,), out=folder, weights=True)
    save_file({"x": x}, folder / "inputs.safetensors")
    save_file({"made": module.eval()(x)["made"].detach().contiguous()}, folder / "expected.safetensors")
    print("drawing", flush=True)


def make_modes(folder: pathlib.Path) -> None:
    """A module of one's own, exported in training and in evaluation; expected: evaluation, and the statistics of one step."""
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    model = Modes()
    random_values(model)
    ids = torch.arange(12).reshape(2, 6) % 24
    inputs = {"input_ids": ids, "labels": (ids + 1) % 24}
    save_file(inputs, folder / "inputs.safetensors")
    for name, train in (("program", True), ("evaluation", False)):
        export_program.export(model, (), inputs, folder / f"{name}.pt2", dynamic_shapes={}, train=train, weights=True,
                              kinds=lambda name: {"input_ids": "ids", "labels": "labels"}[name])  # fmt: skip
        slim(folder / f"{name}.pt2", bare=True)
    with torch.no_grad():
        expected = {name: tensor.clone() for name, tensor in model.eval()(**inputs).items()}
        model.train()(**inputs)
    save_file(expected, folder / "expected.safetensors")
    save_file({name: buffer.clone() for name, buffer in model.named_buffers()}, folder / "statistics.safetensors")
    print("modes", float(expected["loss"]), flush=True)


class Regression(torch.nn.Module):
    """Labels that are numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.up = torch.nn.Linear(6, 8)
        self.down = torch.nn.Linear(8, 2)

    def forward(self, features, labels):
        made = self.down(torch.tanh(self.up(features)))
        return {"loss": torch.nn.functional.mse_loss(made, labels), "made": made}


def make_examples(folder: pathlib.Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(5)
    rows = 12
    still = dict(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    bert = transformers.AutoConfig.for_model(
        "bert", vocab_size=48, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48,
        max_position_embeddings=32, architectures=["BertForMaskedLM"], **still)  # fmt: skip
    ids = torch.randint(5, 48, (rows, 12), generator=generator)
    mask = (torch.arange(12) < torch.randint(6, 13, (rows, 1), generator=generator)).long()
    # From no label to one at every token.
    masked = (torch.arange(rows)[:, None] * torch.rand(rows, 12, generator=generator) > 2.5) & (mask == 1)
    text = {"input_ids": torch.where(masked, 4, ids), "attention_mask": mask, "labels": torch.where(masked, ids, -100)}
    vit = transformers.AutoConfig.for_model(
        "vit", image_size=8, patch_size=4, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=24,
        num_labels=5, architectures=["ViTForImageClassification"], **still)  # fmt: skip
    images = {"pixel_values": torch.randn(rows, 3, 8, 8, generator=generator),
              "labels": torch.randint(5, (rows,), generator=generator)}  # fmt: skip
    numbers = {"features": torch.randn(rows, 6, generator=generator), "labels": torch.randn(rows, 2, generator=generator)}
    pairs_of_texts = transformers.AutoConfig.for_model(
        "bert", vocab_size=48, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=24,
        max_position_embeddings=32, num_labels=3, architectures=["BertForSequenceClassification"], **still)  # fmt: skip
    second = (torch.arange(12) >= torch.randint(3, 9, (rows, 1), generator=generator)).long()
    pairs = {"input_ids": torch.randint(5, 48, (rows, 12), generator=generator), "attention_mask": mask, "token_type_ids": second,
             "labels": torch.randint(3, (rows,), generator=generator)}  # fmt: skip
    wav2vec = transformers.AutoConfig.for_model(
        "wav2vec2", hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=24, conv_dim=[8, 8],
        conv_stride=[5, 2], conv_kernel=[10, 3], num_feat_extract_layers=2, feat_extract_norm="layer", do_stable_layer_norm=True,
        num_conv_pos_embeddings=4, num_conv_pos_embedding_groups=2, classifier_proj_size=8, num_labels=4, layerdrop=0.0,
        apply_spec_augment=False, hidden_dropout=0.0, attention_dropout=0.0, activation_dropout=0.0, feat_proj_dropout=0.0,
        final_dropout=0.0, architectures=["Wav2Vec2ForSequenceClassification"])  # fmt: skip
    speech = {"input_values": torch.randn(rows, 200, generator=generator), "labels": torch.randint(4, (rows,), generator=generator)}
    for name, config, inputs in (("masked_lm", bert, text), ("classifier", vit, images), ("regression", None, numbers),
                                 ("pairs", pairs_of_texts, pairs), ("speech", wav2vec, speech)):  # fmt: skip
        torch.manual_seed(0)
        program = folder / f"{name}.pt2"
        if config is None:
            model = Regression()
            export_program.export(model, (), inputs, program, weights=True)
        else:
            model = hugging_face.build(config, torch.float32)
            random_values(model)
            model.save_pretrained(folder / "model")
            options = export_program.Options(dtype="float32", inputs=list(inputs), weights=True)
            export_program.export_model(folder / "model", options, program)
            shutil.rmtree(folder / "model")
        slim(program, bare=True)
        model.train().zero_grad()
        loss = model(**inputs)["loss"]
        loss.backward()
        norm = torch.linalg.vector_norm(torch.stack([p.grad.norm() for p in model.parameters() if p.grad is not None]))
        save_file({key: one.contiguous() for key, one in inputs.items()}, folder / f"{name}.safetensors")
        save_file({"loss": loss.detach(), "grad_norm": norm}, folder / f"{name}.expected.safetensors")
        print("examples", name, loss.item(), norm.item(), program.stat().st_size // 1024, flush=True)


# Models whose attention, or whose two stacks, `suggest` shards by the data flow of the program.
SUGGESTED: dict[str, dict] = {
    "bloom": dict(vocab_size=48, hidden_size=32, n_layer=1, n_head=4, hidden_dropout=0.0, attention_dropout=0.0,
                  pad_token_id=0, bos_token_id=1, eos_token_id=2),
    "bart": dict(vocab_size=48, d_model=32, encoder_layers=1, decoder_layers=1, encoder_attention_heads=4,
                 decoder_attention_heads=4, encoder_ffn_dim=48, decoder_ffn_dim=48, max_position_embeddings=64, dropout=0.0,
                 attention_dropout=0.0, activation_dropout=0.0, pad_token_id=1, bos_token_id=0, eos_token_id=2,
                 decoder_start_token_id=2, forced_eos_token_id=None),
}  # fmt: skip


def make_suggested(folder: pathlib.Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for kind, sizes in SUGGESTED.items():
        torch.manual_seed(0)
        model = hugging_face.build(transformers.AutoConfig.for_model(kind, **sizes), torch.float32)
        random_values(model)
        program = folder / f"{kind}.pt2"
        with tempfile.TemporaryDirectory() as checkpoint:
            model.save_pretrained(checkpoint)
            options = export_program.Options(dtype="float32", weights=True)
            exported = export_program.export_model(checkpoint, options, program)
        slim(program, bare=True)
        names = [one["name"] for one in exported.description["inputs"]]
        save_file(hugging_face.example_inputs(model, names, 4, 12, seed=3)[0], folder / f"{kind}.safetensors")
        print("suggested", kind, program.stat().st_size // 1024, flush=True)


def make_with_weights(out: pathlib.Path, case: str) -> None:
    """The program again, with the values of its parameters in the archive."""
    program = out / case / "with_weights.pt2"
    export_program.export_model(out / case, export_program.Options(dtype="float32", weights=True), program)
    slim(program, bare=True)


def make_input_sets(out: pathlib.Path, case: str) -> None:
    """A directory of programs, one for each set of inputs, and what the model computes with each set: padded rows, rows of two
    sequences (positions that begin again), and both."""
    folder = out / case / "inputs"
    export_program.main([str(out / case), str(folder), "--dtype", "float32"])
    for program in json.loads((folder / "index.json").read_text())["programs"]:
        slim(folder / program["file"], bare=True)
        real = hugging_face.build(hugging_face.load_config(out / case), torch.float32, folder=out / case)
        inputs, _ = hugging_face.example_inputs(real, program["inputs"], 3, 12, seed=3)
        if "position_ids" in inputs:
            inputs["position_ids"] = (torch.arange(12) % 7).expand(3, 12).contiguous()
        results = real(**inputs, **hugging_face.forward_options(real))
        results.loss.backward()
        expected = {name: results[name].detach() for name in ("loss", "logits")}
        query = "model.layers.0.self_attn.q_proj.weight"
        expected[f"grad.{query}"] = real.get_parameter(query).grad
        name = program["file"].removesuffix(".pt2")
        save_file(inputs, folder / f"{name}.inputs.safetensors")
        save_file(expected, folder / f"{name}.expected.safetensors")
        print(case, name, float(results.loss), flush=True)


def make_double(out: pathlib.Path, case: str) -> None:
    program = out / case / "program_float64.pt2"
    export_program.export_model(out / case, export_program.Options(dtype="float64", experts="batched_mm"), program)
    slim(program, bare=True)
    print(case, "float64", program.stat().st_size // 1024, flush=True)


def make_reference(out: pathlib.Path, name: str) -> None:
    for cls in (stand_ins.BaiChuanForCausalLM, stand_ins.BaichuanForCausalLM, stand_ins.DeciLMForCausalLM):
        setattr(transformers, cls.__name__, cls)
    for config in (stand_ins.BaichuanConfig, stand_ins.NemotronNasConfig):
        transformers.AutoConfig.register(config.model_type, config, exist_ok=True)
    program = out / "reference" / f"{name}.pt2"
    program.parent.mkdir(parents=True, exist_ok=True)
    # Experts of odd sizes, whose shards grouped_mm would not take.
    options = export_program.Options(dtype="float32", experts="batched_mm" if name == "mixtral" else None)
    exported = export_program.export_model(HERE.parent / name, options, program)
    slim(program, bare=True)
    print(name, exported.description["notes"], program.stat().st_size // 1024, flush=True)


def main() -> None:
    torch.set_num_threads(1)  # as the tests run them: sums of several threads have another order
    out = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else HERE
    for case in sys.argv[2:] or (*CASES, "llama/with_weights", "llama/inputs", "examples", "suggested", "dtypes", "modes", "drawing", "sizes", "lengths", "branches", "constants", *OUTPUTS, "nested", *(f"reference/{name}" for name in REFERENCE)):
        try:
            if case == "examples":
                make_examples(HERE.parent / "examples" if out == HERE else out / "examples")
            elif case == "suggested":
                make_suggested(HERE.parent / "suggested" if out == HERE else out / "suggested")
            elif case == "sizes":
                make_sizes(OWN_MODULES / "sizes" if out == HERE else out / "sizes")
            elif case == "lengths":
                make_lengths(OWN_MODULES / "lengths" if out == HERE else out / "lengths")
            elif case == "constants":
                make_constants(OWN_MODULES / "constants" if out == HERE else out / "constants")
            elif case == "branches":
                make_branches(OWN_MODULES / "branches" if out == HERE else out / "branches")
            elif case in OUTPUTS:
                torch.manual_seed(0)
                model, evaluation = OUTPUTS[case]
                module = model()
                make_outputs((OWN_MODULES if out == HERE else out) / case, module, evaluation)
                if case == "outputs":
                    make_curve((OWN_MODULES if out == HERE else out) / case, module)
            elif case.removesuffix("/torch") in OUTPUTS:
                torch.manual_seed(0)
                case = case.removesuffix("/torch")
                make_of_torch((OWN_MODULES if out == HERE else out) / case, OUTPUTS[case][0]())
            elif case == "nested":
                make_nested(OWN_MODULES / "nested" if out == HERE else out / "nested")
            elif case == "dtypes":
                make_dtypes(DTYPES_HERE if out == HERE else out / "dtypes")
            elif case == "drawing":
                make_drawing(OWN_MODULES / "drawing" if out == HERE else out / "drawing")
            elif case == "modes":
                make_modes(OWN_MODULES / "modes" if out == HERE else out / "modes")
            elif case in CASES:
                make(out, case)
                if case == "deepseek_v3":
                    make_double(out, case)
            elif case.endswith("/with_weights"):
                make_with_weights(out, case.removesuffix("/with_weights"))
            elif case.endswith("/inputs"):
                make_input_sets(out, case.removesuffix("/inputs"))
            elif case.endswith("/float64"):
                make_double(out, case.removesuffix("/float64"))
            else:
                make_reference(out, case.removeprefix("reference/"))
        except Exception as error:  # noqa: BLE001
            print(case, "FAILED", type(error).__name__, str(error)[:300])


if __name__ == "__main__":
    main()
