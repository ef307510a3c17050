#!/usr/bin/env python3
"""Plans a small model of every language model type that transformers has, and prints one table.

    zoo.py MOONSHARD FOLDER [TYPE...]            makes, plans and runs them, --jobs at a time; FOLDER/KIND/TYPE keeps each model and its row
    zoo.py MOONSHARD FOLDER --plan [TYPE...]     without running them: 2 s a type and not 30
    zoo.py MOONSHARD FOLDER --headers [TYPE...]  as --plan, of headers alone: minutes for all types
    zoo.py MOONSHARD FOLDER --table              Markdown, of the rows that are there

A KIND is `causal`, `image` (image and text to text), `seq2seq` or `speech`. A model is transformers' own class with a default
config whose sizes are small (survey.py beside the exporter, and TOWERS below), with random weights, written by save_pretrained.
FOLDER/KIND/TYPE/full has the headers of the same class with the sizes of its default config, as save_pretrained would name them:
a file without its bytes. So is a model whose parts, which this script does not know how to make small, have more than 40 million
parameters: it is planned and not run. A row that is there already is not made again, unless its type is named.

What a row says: who wrote the plan that `explain` chose at tp=2, or the finding that refused; the share of the parameters'
elements in sharded tensors at tp 2 and 4, and under the plan of Hugging Face, of the small model and of the full one (in a small
one tables of positions and patches weigh more than they do); whether sequence parallelism is planned, or the finding; without
--plan, the largest difference of loss, logits and all gradients on two ranks from transformers on one, without and with sequence
parallelism, of the model exported with token ids, and without images or sound.
"""

import argparse
import json
import multiprocessing
import multiprocessing.connection
import os
import pathlib
import struct
import subprocess
import sys
import time
import warnings
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "engine/models/program/export"))
os.environ.setdefault("HF_HUB_OFFLINE", "1")

KINDS = {
    "causal": ("AutoModelForCausalLM", "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES"),
    "image": ("AutoModelForImageTextToText", "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES"),
    "seq2seq": ("AutoModelForSeq2SeqLM", "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES"),
    "speech": ("AutoModelForSpeechSeq2Seq", "MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES"),
}
MESHES = {"tp2": "tp=2", "tp4": "tp=4"}
LIMIT = 300  # seconds for a model


def types_of(kind: str) -> list[str]:
    from transformers.models.auto import modeling_auto

    return list(getattr(modeling_auto, KINDS[kind][1]))


def make(kind: str, model_type: str, folder: pathlib.Path, headers: bool) -> dict[str, Any]:
    """Writes the checkpoint, of a large model or with `headers` only its headers, and gives what Hugging Face's plan shards
    of it."""
    import torch
    import transformers

    import hugging_face
    import survey

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.manual_seed(0)
    config = survey.small_config(model_type, KINDS[kind][0])
    cls = survey.class_of(model_type, KINDS[kind][0])
    config.architectures = [cls.__name__]
    with torch.device("meta"):
        size = sum(p.numel() for p in cls(survey.small_config(model_type, KINDS[kind][0])).parameters())
    if size > MOST_ELEMENTS or headers:
        peer = write_headers(cls, config, folder)
        return {"class": cls.__name__, "parameters": size, "peer": peer, "headers": size > MOST_ELEMENTS or "wanted"}
    model = hugging_face.build(config, torch.float32)
    hugging_face.randomise(model)
    model.save_pretrained(folder)
    return {"class": cls.__name__, "parameters": size, "peer": peer_share(model)}


def make_full(kind: str, model_type: str, folder: pathlib.Path) -> None:
    """The headers of the model with its default sizes."""
    import transformers

    import survey

    whole = transformers.CONFIG_MAPPING[model_type]
    cls = survey.class_of(model_type, KINDS[kind][0])
    config = (cls.config_class if cls.config_class in whole.sub_configs.values() else whole)()
    peer = write_headers(cls, config, folder)
    (folder / "peer.json").write_text(json.dumps({"peer": peer}))


def write_headers(cls: type, config: Any, folder: pathlib.Path) -> float | None:
    """Writes config.json and the header of a model, on no device, and gives what Hugging Face's plan shards of it."""
    import torch
    from transformers.modeling_utils import remove_tied_weights_from_state_dict, revert_weight_conversion

    config._attn_implementation = "eager"
    with torch.device("meta"):
        model = cls(config).to(torch.bfloat16)
    model.config.architectures = [cls.__name__]
    tensors = model.state_dict()
    for name in getattr(model, "_keys_to_ignore_on_save", None) or []:
        tensors.pop(name, None)
    tensors = revert_weight_conversion(model, remove_tied_weights_from_state_dict(tensors, model))
    folder.mkdir(parents=True, exist_ok=True)
    model.config.save_pretrained(folder)
    _write_header(folder / "model.safetensors", tensors)
    return peer_share(model)


DTYPES = {"float32": "F32", "bfloat16": "BF16", "float16": "F16", "int64": "I64", "int32": "I32", "bool": "BOOL", "uint8": "U8",
          "complex64": "C64", "float64": "F64", "int8": "I8"}  # fmt: skip


def _write_header(path: pathlib.Path, tensors: dict[str, Any]) -> None:
    """A safetensors file whose data are a hole."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, tensor in sorted(tensors.items()):
        begin, end = end, end + tensor.numel() * tensor.element_size()
        dtype = DTYPES[str(tensor.dtype).removeprefix("torch.")]
        header[name] = {"dtype": dtype, "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + end)


MOST_ELEMENTS = 40_000_000
# Sizes beside those of survey.py: of towers, projectors and further vocabularies.
TOWERS: dict[str, Any] = {
    "image_size": 32, "patch_size": 8, "out_hidden_size": 64, "num_position_embeddings": 16, "mlp_dim": 96,
    "output_channels": 32, "output_dim": 64, "projection_dim": 64, "max_source_positions": 64, "encoder_hidden_size": 64,
    "dense_intermediate_size": 96, "shared_intermediate_size": 32, "projector_hidden_size": 64,
    "alignment_intermediate_size": 128, "projector_input_dim": 64, "projector_output_dim": 64, "d_inner": 96, "dff": 96,
    "dim_ff": 96, "cross_hidden_size": 64, "share_expert_dim": 32, "patch_embed_hidden_size": 32, "depth": 2,
    "downsample_hidden_size": 32, "merged_hidden_size": 64, "projection_hidden_size": 64, "src_vocab_size": 128,
    "tgt_vocab_size": 128, "t2u_vocab_size": 128, "char_vocab_size": 128, "t2u_decoder_ffn_dim": 96,
    "t2u_encoder_ffn_dim": 96, "speech_encoder_intermediate_size": 96, "shape_vocab_size": 128,
    "pronunciation_vocab_size": 128, "encoder_max_position_embeddings": 64, "subsampling_conv_channels": 32,
    "max_encoder_position_embeddings": 256, "max_decoder_position_embeddings": 256, "n_mels": 16, "num_mel_bins": 16,
    "ngram_vocab_size_base": 128, "hc_lowrank": 16, "rel_extent": 64, "position_bias_max_distance": 64,
    "position_bias_num_buckets": 32,
}  # fmt: skip
TEXT = {"vocab_size": 128, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
CODEBOOK = {"base_channels": 32, "channel_multiplier": [1, 1], "embed_dim": 32, "latent_channels": 32}
# What these sizes do not fit, and what a config leaves to be said.
OWN: dict[str, dict[str, Any]] = {
    "": {"intermediate_size": 16},  # the adaptor of Fun-ASR
    "blt": {"encoder_hash_byte_group_vocab": 64, "encoder_hash_byte_group_size": [3, 4]},
    "chameleon": {"vocabulary_map": {"<image>": 5, "IMGIMGA": 6}},
    "chameleon_vqgan": CODEBOOK | {"num_embeddings": 16, "resolution": 32},
    "cosmos3_edge_text": {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [4, 2, 2]}},
    "deepseek_ocr2_text": {"mlp_layer_types": ["dense", "sparse"], "num_experts_per_tok": 2},
    "diffusion_gemma": {"vision_config": TEXT | {
        "model_type": "gemma4_vision", "hidden_size": 32, "num_key_value_heads": 4, "head_dim": 8, "patch_size": 4}},
    "diffusion_gemma_text": {
        "per_layer_config": None, "head_dim": 16, "num_key_value_heads": 2, "num_experts": 4, "moe_intermediate_size": 32,
        "top_k_experts": 2, "num_hidden_layers": 2, "layer_types": ["sliding_attention", "full_attention"]},
    "emu3": {"vocabulary_map": {"<image>": 5, "<|extra_200|>": 6, "<|visual token 000000|>": 7}},
    "emu3_vqgan": CODEBOOK | {"latent_channels": 4, "codebook_size": 16},
    "encoder-decoder": {"encoder": TEXT | {"model_type": "bert"},
                        "decoder": TEXT | {"model_type": "bert", "is_decoder": True, "add_cross_attention": True}},
    "ernie4_5_vl_moe_text": {
        "moe_intermediate_size": [32, 16], "mlp_layer_types": ["dense", "sparse"], "hidden_size": 64, "head_dim": 16,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [3, 3, 2]}},
    "fast_vlm": {"vision_config": {"model_type": "timm_wrapper", "architecture": "fastvit_mci3", "hidden_size": 3072,
                                   "model_args": {"inference_mode": True}}},
    "florence_vision": {
        "embed_dim": [16, 32], "num_heads": [2, 4], "num_groups": [2, 4], "depths": [1, 1], "patch_size": [7, 3],
        "patch_stride": [4, 2], "patch_padding": [3, 1], "patch_prenorm": [False, True]},
    "glm5_next_text": {"index_kpool": 2, "index_topk": 8, "head_dim": 0, "qk_rope_head_dim": 0, "qk_head_dim": 16},
    **{name: {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [3, 3, 2]}}
       for name in ("glm4v_text", "glm_ocr_text", "paddleocr_vl_text", "qwen2_5_omni_text", "qwen2_5_vl_text",
                    "qwen2_vl_text")},
    "glm4v_moe_text": {"rope_parameters": {
        "rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5, "mrope_section": [2, 1, 1]}},
    "granite4_vision": {"text_config": TEXT | {"model_type": "granite", "num_key_value_heads": 2},
                        "deepstack_layer_map": [[0, 0]], "spatial_target_layers": [0], "downsample_rate": "1/2"},
    "hunyuan_vl_text": {"head_dim": 16, "rope_parameters": {
        "rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 2, 2, 2]}},
    "lfm2": {"num_hidden_layers": 3, "layer_types": ["conv", "full_attention", "conv"]},
    "kyutai_speech_to_text": {"pad_token_id": 3, "audio_pad_token_id": 4, "audio_bos_token_id": 5},
    "moonshine_streaming": {"num_key_value_heads": 4},
    "speech-encoder-decoder": {
        "encoder": TEXT | {"model_type": "wav2vec2", "conv_dim": [32, 32], "conv_kernel": [3, 3], "conv_stride": [2, 2],
                           "num_feat_extract_layers": 2, "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4},
        "decoder": TEXT | {"model_type": "bert", "is_decoder": True, "add_cross_attention": True}},
    "janus_vqgan": CODEBOOK | {"embed_dim": 8, "num_embeddings": 16},
    "mimi": {"upsample_groups": 64},
    "mistral4": {"head_dim": 8, "rope_parameters": {
        "rope_type": "default", "rope_theta": 1e4, "llama_4_scaling_beta": 0.1,
        "original_max_position_embeddings": 8}},
    "perception_lm": {"vision_config": {"model_type": "timm_wrapper", "architecture": "vit_pe_core_tiny_patch16_384",
                                        "model_args": {"embed_dim": 192}}},
    "radio": {"video_temporal_patch_size": 2, "num_hidden_layers": 2},
    "step3p5": {"sliding_window": 8, "layer_types": ["full_attention", "sliding_attention"],
                "mlp_layer_types": ["dense", "sparse"], "rope_parameters": {
        "full_attention": {"rope_type": "default", "rope_theta": 1e4},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}},
    "vibevoice_acoustic_tokenizer_encoder": {"depths": [1, 1, 1], "downsampling_ratios": [2, 2], "num_filters": 16},
    "vision-encoder-decoder": {
        "encoder": TEXT | {"model_type": "vit", "image_size": 64, "patch_size": 8},
        "decoder": TEXT | {"model_type": "bert", "is_decoder": True, "add_cross_attention": True}},
}  # fmt: skip


def peer_share(model: Any) -> float | None:
    """Share of the elements in tensors that `from_pretrained(tp_plan="auto")` cuts; None where there is no plan."""
    from transformers.distributed import tensor_parallel

    plan = getattr(model, "tp_plan", None) or {}
    if not plan:
        return None
    whole = cut = 0
    for name, parameter in model.named_parameters():
        style = tensor_parallel._get_parameter_tp_plan(parameter_name=name, tp_plan=plan, is_weight=True)
        whole += parameter.numel()
        cut += parameter.numel() if style and style.startswith(CUTS) and parameter.dim() > 1 else 0
    return cut / whole


CUTS = ("colwise", "rowwise", "packed", "embedding", "grouped_gemm")


def plan(moonshard: str, folder: pathlib.Path) -> dict[str, Any]:
    """What `explain` says of the checkpoint on each mesh, and with sequence parallelism."""
    import survey

    row: dict[str, Any] = {}
    for name, mesh in MESHES.items():
        done = _explain(moonshard, folder, mesh)
        if done.returncode:
            row.setdefault("refused", finding(done))
            continue
        described = json.loads(done.stdout)
        row |= {name: survey._share(described), "plan": described["plan"]}
    done = _explain(moonshard, folder, "tp=2", "--option", "sequence_parallel=true")
    row["sequence"] = "yes" if done.returncode == 0 else finding(done)
    return row


def _explain(moonshard: str, folder: pathlib.Path, mesh: str, *more: str) -> subprocess.CompletedProcess:
    command = [moonshard, "explain", str(folder), "--mesh", mesh, "--json", *more]
    return subprocess.run(command, capture_output=True, text=True)


def finding(done: subprocess.CompletedProcess) -> str:
    """The first error that was printed, else the end of it."""
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    errors = [line for line in lines if "error[" in line] or lines[-1:]
    return errors[0][:300] if errors else f"exit code {done.returncode}"


def one(kind: str, model_type: str, given: argparse.Namespace) -> None:
    """Brings the row of a model up to date, in this process."""
    import survey
    from export_program import Options, export_model

    moonshard, folder = given.moonshard, given.folder / kind / model_type

    warnings.simplefilter("ignore")
    row: dict[str, Any] = {"kind": kind, "type": model_type}
    try:
        made = json.loads((folder / "peer.json").read_text()) if (folder / "peer.json").exists() else None
        if made is None or (made.get("headers") == "wanted" and not given.headers):
            folder.mkdir(parents=True, exist_ok=True)
            made = make(kind, model_type, folder, given.headers)
            (folder / "peer.json").write_text(json.dumps(made))
        row |= made
    except Exception as error:
        write(folder, row | {"unmade": survey._reason(error)})
        return
    row |= plan(moonshard, folder)
    full = folder / "full"
    try:
        if not (full / "peer.json").exists():
            make_full(kind, model_type, full)
        described = json.loads(_explain(moonshard, full, "tp=2").stdout)
        row["full"] = {"tp2": survey._share(described), "peer": json.loads((full / "peer.json").read_text())["peer"]}
    except Exception as error:
        row["full"] = {"unmade": survey._reason(error)}
    if given.plan or given.headers or "plan" not in row or "headers" in row:
        write(folder, row | ({"numbers": numbers} if (numbers := _numbers_of(folder)) else {}))
        return
    write(folder, row)
    try:
        # The engine draws other random numbers for dropout.
        options = Options(inputs=survey.INPUTS.get(model_type), train=False)
        survey._expect(folder, export_model(folder, options), options)
        row["numbers"] = survey.survey_engine(moonshard, folder, suggested=False)
        if row["sequence"] == "yes":
            row["numbers"]["sequence"] = run_sequence(moonshard, folder)
    except Exception as error:
        row["numbers"] = {"tp2": "not run", "reason": survey._reason(error)}
    write(folder, row)


def _numbers_of(folder: pathlib.Path) -> dict[str, Any]:
    path = folder / "row.json"
    return json.loads(path.read_text()).get("numbers", {}) if path.exists() else {}


def run_sequence(moonshard: str, folder: pathlib.Path) -> str:
    """With sequence parallelism, where the numbers of transformers and the program are there."""
    from safetensors.torch import load_file

    import survey

    expected = load_file(folder / "expected.safetensors")
    options = ["--program", str(folder / "program.pt2"), "--mesh", "tp=2", "--option", "sequence_parallel=true"]
    try:
        return survey._number(survey._evaluate(moonshard, folder, options, expected))
    except RuntimeError as error:
        return finding(subprocess.CompletedProcess([], 1, "", str(error)))


def write(folder: pathlib.Path, row: dict[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "row.json").write_text(json.dumps(row, indent=1) + "\n")


# --- The table --------------------------------------------------------------------------------------------------------
def table(rows: list[dict[str, Any]]) -> str:
    kinds = [kind for kind in KINDS if any(row["kind"] == kind for row in rows)]
    out = ["| | " + " | ".join(kinds) + " |", "|---|" + "---|" * len(kinds)]

    def line(what: str, holds: Any) -> None:
        out.append(f"| {what} | " + " | ".join(str(sum(r["kind"] == k and bool(holds(r)) for r in rows)) for k in kinds) + " |")

    def share(row: dict[str, Any], mesh: str = "tp2") -> float:
        return row.get(mesh, 0.0)

    line("types", lambda r: True)
    line("planned at tp=2", lambda r: "tp2" in r)
    line("planned at tp=4", lambda r: "tp4" in r)
    line("by a plan of their family", lambda r: "tp2" in r and r["plan"] not in ("default", "suggested"))
    line("by structure", lambda r: "tp2" in r and r["plan"] == "suggested")
    line("not made: no small model", lambda r: "unmade" in r)
    line("90 % or more of the parameters sharded, small", lambda r: share(r) >= 0.9)
    line("90 % or more of the parameters sharded, default sizes", lambda r: r.get("full", {}).get("tp2", 0.0) >= 0.9)
    line("no model of default sizes", lambda r: "tp2" in r and "tp2" not in r.get("full", {}))
    line("with sequence parallelism", lambda r: r.get("sequence") == "yes")
    line("less sharded than by Hugging Face's plan", _less)
    line("run on two ranks: same numbers", lambda r: _same(r) is True)
    line("run on two ranks: other numbers", lambda r: _same(r) is False)
    line("with sequence parallelism: same numbers", lambda r: _same(r, "sequence") is True)
    line("with sequence parallelism: other numbers", lambda r: _same(r, "sequence") is False)
    out += ["", "Shares and the numbers' largest difference; the share of default sizes is in brackets.", "",
            "| type | kind | plan | tp=2 | tp=4 | Hugging Face | sequence parallel | numbers |", "|" + "---|" * 8]  # fmt: skip
    for row in rows:
        peer = row.get("peer")
        sequence = row.get("sequence", "")
        numbers = row.get("numbers", {})
        cells = [row["type"], row["kind"], row.get("plan") or row.get("refused") or "not made: " + row.get("unmade", ""),
                 *(f"{share(row, mesh):.2f}" + _full(row, mesh) if mesh in row else "" for mesh in MESHES),
                 "" if peer is None else f"{peer:.2f}" + _full(row, "peer"),
                 numbers.get("sequence") if sequence == "yes" and "e-" in numbers.get("sequence", "") else _id(sequence),
                 numbers.get("tp2") or numbers.get("engine", "")]  # fmt: skip
        out.append("| " + " | ".join(cell.replace("|", "/")[:120] for cell in cells) + " |")
    return "\n".join(out)


def _full(row: dict[str, Any], what: str) -> str:
    share = row.get("full", {}).get(what)
    return "" if share is None else f" ({share:.2f})"


def _less(row: dict[str, Any]) -> bool:
    """Of default sizes where they are there."""
    of = row["full"] if "tp2" in row.get("full", {}) else row
    return of.get("peer") is not None and of.get("tp2", 0.0) < of["peer"] - 0.01


def _same(row: dict[str, Any], what: str = "tp2") -> bool | None:
    import survey

    text = row.get("numbers", {}).get(what, "")
    return survey._class(text) in ("bits", "within 1e-4") if survey._is_number_text(text) else None


def _id(sequence: str) -> str:
    at = sequence.find("[MS")
    return sequence[at + 1 : at + 7] if at >= 0 else sequence


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("moonshard")
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("types", nargs="*")
    parser.add_argument("--plan", action="store_true", help="do not run them")
    parser.add_argument("--headers", action="store_true", help="do not run them, and make their headers alone")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--jobs", type=int, default=1, help="so many models at a time")
    given = parser.parse_intermixed_args()
    if not given.table:
        import torch
        import transformers  # noqa: F401

        import survey

        torch.set_num_threads(1)
        survey.SIZES.update({name: size for name, size in TOWERS.items() if name not in survey.SIZES})
        survey.OWN.update(OWN)
        _run_all(given, [(kind, name) for kind in KINDS for name in types_of(kind) if _is_wanted(given, kind, name)])
    rows = [json.loads(path.read_text()) for path in sorted(given.folder.glob("*/*/row.json"))]
    print(table(rows if given.table else [row for row in rows if not given.types or row["type"] in given.types]))


def _is_wanted(given: argparse.Namespace, kind: str, name: str) -> bool:
    done = given.folder / kind / name / "row.json"
    if given.types:
        return name in given.types
    return not done.exists() or not (given.plan or given.headers or "numbers" in done.read_text())


def _run_all(given: argparse.Namespace, wanted: list[tuple[str, str]]) -> None:
    """A child for each: what crashes or hangs is a row. It is forked, since importing transformers takes seconds."""
    running: list[tuple[Any, float, str, str]] = []
    while wanted or running:
        while wanted and len(running) < given.jobs:
            kind, name = wanted.pop(0)
            child = multiprocessing.get_context("fork").Process(
                target=one, args=(kind, name, given)
            )
            child.start()
            running.append((child, time.monotonic() + LIMIT, kind, name))
        multiprocessing.connection.wait([child.sentinel for child, *_ in running], timeout=1)
        for one_of in list(running):
            child, until, kind, name = one_of
            if child.is_alive() and time.monotonic() < until:
                continue
            running.remove(one_of)
            _finish(child, given.folder / kind / name, kind, name)


def _finish(child: Any, folder: pathlib.Path, kind: str, name: str) -> None:
    if child.exitcode == 0:
        return
    why = f"not done after {LIMIT} s" if child.is_alive() else f"exit code {child.exitcode}"
    child.kill()
    child.join()
    row = json.loads((folder / "row.json").read_text()) if (folder / "row.json").exists() else {"kind": kind, "type": name}
    write(folder, row | ({"numbers": {"tp2": "not run", "reason": why}} if "plan" in row else {"unmade": why}))


if __name__ == "__main__":
    main()
