#!/usr/bin/env python3
"""Exports small models of transformers, and checks what the archives record, for tests/parity/merged_test.cc.

    check_transformers.py [CASE...]     needs torch, transformers 5.18 and safetensors

Each program is also run in Python, and must compute what the model computes: outputs and all gradients. Exit status 77:
this Python cannot import the packages, or has another transformers; 1: a check fails, with its text.
"""

import json
import logging
import pathlib
import sys
import tempfile
import warnings

try:
    import safetensors.torch  # noqa: F401
    import torch
    import transformers
except (ImportError, OSError) as error:
    print(f"{sys.executable} cannot import what the check needs: {error}")
    sys.exit(77)

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[2] / "engine" / "models" / "program" / "export"))

import export_program  # noqa: E402
import hugging_face  # noqa: E402

VERSION = "5.18."
TOLERANCE = 1e-5
TOKENS = dict(pad_token_id=0, bos_token_id=1, eos_token_id=2)
SMALL = dict(vocab_size=32, hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2)
DECODER = {**SMALL, **TOKENS, "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 32}
IDS = ["input_ids ids int64: input_ids.0, input_ids.1", "labels labels int64: labels.0, labels.1"]
DRAWN, ZERO, ONE = {"normal": [0.0, 0.02]}, {"constant": 0.0}, {"constant": 1.0}

# The type and config of a model, the example's length, and what is recorded of its program, in the form of `recorded`. Of
# the initial values and recipes, some names.
CASES: dict[str, tuple[str, dict, int, dict]] = {
    "vit": ("vit", {**SMALL, "image_size": 8, "patch_size": 4, "num_labels": 5,
                    "architectures": ["ViTForImageClassification"]}, 17, {
        "inputs": ["pixel_values pixels float32: pixel_values.0, 3, 8, 8", "labels labels int64: pixel_values.0"],
        "outputs": ["loss: ", "logits: pixel_values.0, 5"],
        "initial": {"classifier.weight": DRAWN, "vit.layernorm.weight": ONE, "vit.layernorm.bias": ZERO},
        "recipes": {"vit.layers.0.mlp.fc1.weight": [{"tensor": "vit.encoder.layer.0.intermediate.dense.weight"}]}}),
    "bert": ("bert", {**SMALL, "max_position_embeddings": 32, "num_labels": 3,
                      "architectures": ["BertForSequenceClassification"]}, 17, {
        "inputs": [IDS[0], "labels labels int64: input_ids.0"], "outputs": ["loss: ", "logits: input_ids.0, 3"],
        "initial": {"bert.pooler.dense.weight": DRAWN, "bert.embeddings.LayerNorm.weight": ONE}}),
    "gemma3": ("gemma3_text", {**DECODER, "query_pre_attn_scalar": 8, "sliding_window": 8,
                               "layer_types": ["sliding_attention"]}, 17, {
        "inputs": IDS, "outputs": ["loss: ", "logits: input_ids.0, input_ids.1, 32"], "regions": [False],
        "initial": {"model.norm.weight": ZERO, "model.layers.0.self_attn.q_norm.weight": ZERO,
                    "model.embed_tokens.weight": DRAWN}}),
    "deepseek_v3": ("deepseek_v3", {
        **DECODER, "head_dim": 4, "q_lora_rank": 8, "kv_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 8,
        "v_head_dim": 8, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1,
        "moe_intermediate_size": 16, "first_k_dense_replace": 0, "n_shared_experts": 1}, 17, {
        "inputs": IDS, "outputs": ["loss: ", "logits: input_ids.0, input_ids.1, 32"], "regions": [False],
        "guards": ["model integrations/moe.py", "operator chunk"],
        "initial": {"model.layers.0.mlp.gate.e_score_correction_bias": ZERO, "model.norm.weight": ONE,
                    "model.layers.0.mlp.experts.down_proj": DRAWN},
        "recipes": {"model.layers.0.mlp.experts.down_proj": [
            {"stack": "model.layers.0.mlp.experts.{}.down_proj.weight", "count": 4, "dim": 0}]}}),
    # Of chunks of 8, of which the example has one and a token.
    "xlstm": ("xlstm", {**TOKENS, "vocab_size": 32, "hidden_size": 16, "embedding_dim": 16, "num_heads": 2,
                        "num_blocks": 1, "num_hidden_layers": 1, "chunk_size": 8}, 9, {
        "inputs": IDS, "outputs": ["loss: ", "logits: input_ids.0, input_ids.1, 32"],
        "guards": ["model xlstm/modeling_xlstm.py"], "valid": {"input_ids.1": [[9, 9]]}, "evaluates": False,
        "initial": {"backbone.blocks.0.mlstm_layer.fgate_preact.bias": {"values": [3.0, 6.0]},
                    "backbone.out_norm.weight": ONE}}),
}  # fmt: skip

# All others are exported in evaluation mode, which is one trace and not two.
TRAINING = ("vit", "bert", "xlstm")


def recorded(exported: export_program.Exported, expected: dict) -> dict:
    """What the record says, a dim as INPUT.DIM of the input that gives its symbol, in the form of CASES."""
    description = exported.description
    names = {name: f"{one['input']}.{one['dim']}" for name, one in description["symbols"].items() if "input" in one}

    def shape(one: dict) -> str:
        return ", ".join(str(names.get(size, size)) for size in one["shape"])

    def place(guard: dict) -> str:
        return "/".join(guard["place"].partition(":")[0].split("/")[-2:])

    full = [[1, export_program.LONGEST]]
    return {
        "inputs": [f"{one['name']} {one['kind']} {one['dtype']}: {shape(one)}" for one in description["inputs"]],
        "outputs": [f"{one['name']}: {shape(one)}" for one in description["outputs"]],
        "regions": regions(exported.program),
        "guards": sorted({f"{one['origin']} {place(one)}" for one in description["guards"]}),
        "valid": {names[name]: one["ranges"] for name, one in description["valid"].items() if one["ranges"] != full},
        "evaluates": description["options"].get("evaluates", True),
        "initial": {name: description["tensors"][name].get("initial") for name in expected["initial"]},
        "recipes": {name: description["weights"]["tensors"].get(name) for name in expected["recipes"]},
    }  # fmt: skip


def regions(program: torch.export.ExportedProgram) -> list[bool]:
    """Whether autocast is enabled in each region that sets it."""
    graphs = [one.graph for one in program.graph_module.modules() if isinstance(one, torch.fx.GraphModule)]
    nodes = [node for graph in graphs for node in graph.nodes if node.op == "call_function"]
    return [node.args[2] for node in nodes if node.target is torch.ops.higher_order.wrap_with_autocast]


def differences(found: dict, expected: dict) -> list[str]:
    return [f"{name}: {found[name]}, expected {one}" for name, one in expected.items() if found[name] != one]


def model(case: str) -> list[str]:
    kind, config, length, given = CASES[case]
    expected = {"regions": [], "guards": [], "valid": {}, "evaluates": True, "recipes": {}, **given}
    config = transformers.AutoConfig.for_model(kind, **config)
    options = export_program.Options(dtype="float32", sequence=length, train=case in TRAINING)
    exported = export_program.export_model(config, options)
    wrong = differences(recorded(exported, expected), expected)
    wrong += [f"{one.shape}: differs by {one.worst:.1e}"
              for one in export_program.check_model(config, options, exported) if one.worst > TOLERANCE]  # fmt: skip
    return wrong


def directory() -> list[str]:
    """A checkpoint, exported to a directory: a program for each set of inputs, each compared with the model."""
    mask, positions = "attention_mask mask int64", "position_ids positions int64"
    sets = {"default": [], "attention_mask": [mask], "position_ids": [positions],
            "attention_mask+position_ids": [mask, positions]}  # fmt: skip
    with tempfile.TemporaryDirectory() as name:
        out = pathlib.Path(name) / "out"
        code = export_program.main([str(HERE.parent / "llama_vocab331"), str(out), "--check", "--eval"])
        programs = json.loads((out / "index.json").read_text())["programs"]
        records = {}
        for one in programs:
            torch.export.load(out / one["file"], extra_files=(extra := {"moonshard.json": ""}))
            records[one["file"].removesuffix(".pt2")] = json.loads(extra["moonshard.json"])
    wrong = [f"status {code}"] if code else []
    if list(records) != list(sets):
        wrong.append(f"programs {list(records)}")
    full = [[1, export_program.LONGEST]]
    for one, (file, record) in zip(programs, records.items()):
        inputs = [f"{given['name']} {given['kind']} {given['dtype']}" for given in record["inputs"]]
        expected = ["input_ids ids int64", *sets.get(file, []), "labels labels int64"]
        if inputs != expected or one["inputs"] != [given["name"] for given in record["inputs"]]:
            wrong.append(f"{file}: inputs {inputs}, in the index {one['inputs']}")
        ranges = [one["ranges"], *(valid["ranges"] for valid in record["valid"].values())]
        if record["guards"] or ranges != [full] * len(ranges):
            wrong.append(f"{file}: guards {record['guards']}, valid {record['valid']}, in the index {one['ranges']}")
        weights = (record["weights"], record["options"]["dtype"], record["tensors"]["model.norm.weight"]["initial"])
        if weights != ({"source": "checkpoint", "tensors": {}, "unsupported": {}}, "float32", ONE):
            wrong.append(f"{file}: {weights}")
    return wrong


def lengths() -> list[str]:
    """A model that loops over positions has a program for each length."""
    config = transformers.AutoConfig.for_model("mamba", **TOKENS, vocab_size=32, hidden_size=16, num_hidden_layers=1,
                                               state_size=4, time_step_rank=4)  # fmt: skip
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        config.save_pretrained(folder / "model")
        code = export_program.main([str(folder / "model"), str(folder / "out"), "--lengths", "3", "4",
                                    "--inputs", "input_ids", "labels", "--eval"])  # fmt: skip
        programs = json.loads((folder / "out" / "index.json").read_text())["programs"]
    inputs = ["input_ids", "labels"]
    expected = [{"file": f"{length}.pt2", "inputs": inputs, "ranges": [[length, length]]} for length in (3, 4)]
    return [] if code == 0 and programs == expected else [f"status {code}, programs {programs}"]


def input_sets() -> list[str]:
    """The sets of inputs of a directory, by the arguments that a model takes."""
    t5 = dict(vocab_size=32, d_model=16, d_kv=8, d_ff=24, num_layers=1, num_heads=2, decoder_start_token_id=0)
    types, decoded = ["token_type_ids"], ["decoder_input_ids", "labels"]
    masked = [[], ["attention_mask"], ["position_ids"], ["attention_mask", "position_ids"]]
    cases = (("vit", CASES["vit"][1], [["pixel_values", "labels"]]),
             ("bert", CASES["bert"][1],
              [["input_ids", *one, *more, "labels"] for more in ([], types) for one in masked]),
             ("t5", t5, [["input_ids", *decoded], ["input_ids", "attention_mask", *decoded],
                         ["input_ids", "attention_mask", "decoder_attention_mask", *decoded]]))  # fmt: skip
    wrong = []
    for kind, config, expected in cases:
        made = hugging_face.build_fake(transformers.AutoConfig.for_model(kind, **config), torch.float32)
        found = hugging_face.input_sets(made)
        if sorted(map(sorted, found)) != sorted(map(sorted, expected)) or found[0] != expected[0]:
            wrong.append(f"{kind}: {found}")
    return wrong


def main() -> int:
    if not transformers.__version__.startswith(VERSION):
        print(f"{sys.executable} has transformers {transformers.__version__}; the check needs {VERSION}*")
        return 77
    transformers.logging.set_verbosity_error()
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    checks = {"directory": directory, "lengths": lengths, "input_sets": input_sets,
              **{case: lambda case=case: model(case) for case in CASES}}  # fmt: skip
    wrong = 0
    for name in sys.argv[1:] or checks:
        for text in checks[name]():
            wrong = 1
            print(f"{name}: {text}")
    return wrong


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    sys.exit(main())
