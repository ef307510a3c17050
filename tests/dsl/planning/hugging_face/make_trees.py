"""Writes trees.txt: what transformers does with every tp_plan and ep_plan that it ships.

    python make_trees.py HF_PLANS_JSON > trees.txt      (transformers 5.18.0, torch 2.11; one process, no network)

For each configuration class with a base_model_tp_plan or a base_model_ep_plan, its base model is built on the meta device
from the class's default configuration (OVERRIDES where the defaults do not build). Each plan is then applied by
transformers' own apply_tensor_parallelism on a mesh of two ranks of torch's fake process group, and the rule that it finds
for each module and parameter is asked of its own _get_parameter_tp_plan. No placement is worked out here: DTensors say it.

One section a class, "== CONFIG MODEL tied|untied"; the plans follow as "tp KEY STYLE" and "ep KEY STYLE", then one line a
module (those that differ in a number only are one, with a range):

    PATH KIND NAME:DTYPE[SHAPE] ... | TP | EP

TP and EP are what each plan does: "KEY" for the rule of the module's calls or "-", then NAME=PLACEMENT@KEY for every
parameter that a rule is found for: S0 a shard of dim 0, P1 a shard of dim 1 with two parts cut each by itself, R a
replicated DTensor, N left a plain tensor; KEY is the rule's, left out where it is the module's own.
KIND is "Linear" and "Embedding" for these classes and those derived from them, else the class's name. Classes that cannot
be built stand at the end: "== CONFIG cannot be built: REASON".
"""
import importlib
import inspect
import json
import os
import re
import sys
import warnings

os.environ["HF_HUB_OFFLINE"] = "1"
warnings.filterwarnings("ignore")

import torch
import transformers
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers import PreTrainedModel
from transformers.distributed import tensor_parallel
from transformers.models.auto.modeling_auto import MODEL_MAPPING

# Fields whose defaults do not make a model, or leave out modules that the plan has rules for: experts, a dense layer among
# them.
EXPERTS = {"num_experts": 8, "top_k_experts": 2, "moe_intermediate_size": 64}
FULL_AND_SLIDING = {"rope_type": "default", "rope_theta": 10000.0}
OVERRIDES = {
    "cohere_compass/CohereCompassTextConfig": {
        "rope_parameters": {"full_attention": FULL_AND_SLIDING, "sliding_attention": FULL_AND_SLIDING}
    },
    "cohere2_moe/Cohere2MoeConfig": {"first_k_dense_replace": 1},
    "deepseek_v2/DeepseekV2Config": {"first_k_dense_replace": 1},
    "deepseek_ocr2/DeepseekOcr2TextConfig": {"mlp_layer_types": ["dense"] + ["sparse"] * 31},
    "diffusion_gemma/DiffusionGemmaTextConfig": EXPERTS,
    "doge/DogeConfig": {"is_moe": True},
    "dots1/Dots1Config": {"n_routed_experts": 8, "n_shared_experts": 1, "num_experts_per_tok": 2, "first_k_dense_replace": 1},
    "flex_olmo/FlexOlmoConfig": {"num_experts": 8},  # 7 do not fit on two ranks
    "gemma4/Gemma4TextConfig": {"enable_moe_block": True, **EXPERTS},
    "hunyuan_v1_moe/HunYuanMoEV1Config": {"head_dim": 128, "num_experts": 8},
    "lfm2_moe/Lfm2MoeConfig": {"layer_types": ["conv", "full_attention"] * 16},
    "llama4/Llama4TextConfig": {"interleave_moe_layer_step": 2},
    "ministral/MinistralConfig": {"head_dim": 128},
    "mistral4/Mistral4Config": {"first_k_dense_replace": 1},
    "qwen2_moe/Qwen2MoeConfig": {"mlp_only_layers": [0]},
    "qwen3_moe/Qwen3MoeConfig": {"mlp_only_layers": [0]},
    "qwen3_next/Qwen3NextConfig": {"mlp_only_layers": [0]},
    "qwen3_omni_moe/Qwen3OmniMoeTalkerTextConfig": {"shared_expert_intermediate_size": 768, "mlp_only_layers": [0]},
    "qwen3_omni_moe/Qwen3OmniMoeTextConfig": {"mlp_only_layers": [0]},
    "qwen3_vl_moe/Qwen3VLMoeTextConfig": {"mlp_only_layers": [0]},
    "qwen4_exp/Qwen4ExpTextConfig": {
        "indexer_n_heads": 4,
        "indexer_kv_heads": 1,
        "indexer_head_dim": 256,
        "indexer_budget": 1024,
        "indexer_compress_ratio": 16,
    },
    "t5gemma/T5GemmaModuleConfig": {"dropout_rate": 0.0, "is_decoder": False},
    "t5gemma2/T5Gemma2DecoderConfig": {"dropout_rate": 0.0},
    "t5gemma2/T5Gemma2TextConfig": {"dropout_rate": 0.0},
}
# Model classes that neither AutoModel nor the configuration's name leads to.
MODELS = {
    "deepseek_ocr2/DeepseekOcr2VisionEncoderConfig": "DeepseekOcr2VisionEncoder",
    "ernie4_5_vl_moe/Ernie4_5_VLMoeVisionConfig": "Ernie4_5_VLMoeVisionTransformerPretrainedModel",
    "ernie4_5_vl_moe/Ernie4_5_VL_MoeTextConfig": "Ernie4_5_VLMoeTextModel",
    "ernie4_5_vl_moe/Ernie4_5_VL_MoeVisionConfig": "Ernie4_5_VLMoeVisionTransformerPretrainedModel",
    "higgs_audio_v2/HiggsAudioV2Config": "HiggsAudioV2Model",
    "paddleocr_vl/PaddleOCRTextConfig": "PaddleOCRTextModel",
    "t5gemma/T5GemmaModuleConfig": "T5GemmaEncoder",
    "voxtral_realtime/VoxtralRealtimeTextConfig": "VoxtralRealtimeTextModel",
}


def model_class(name, folder, config_class):
    if name in MODELS:
        module = importlib.import_module(f"transformers.models.{folder}.modeling_{folder}")
        return getattr(module, MODELS[name])
    try:
        found = MODEL_MAPPING[config_class]
        if inspect.isclass(found):
            return found
    except KeyError:
        pass
    module = importlib.import_module(f"transformers.models.{folder}.modeling_{folder}")
    found = [
        value
        for key, value in sorted(vars(module).items())
        if inspect.isclass(value)
        and issubclass(value, PreTrainedModel)
        and getattr(value, "config_class", None) is config_class
        and not key.lower().endswith("pretrainedmodel")
    ]
    if not found:
        raise LookupError("no model class is made from this configuration")
    return min(found, key=lambda value: len(value.__name__))


def build(name):
    folder, class_name = name.split("/")
    config_module = importlib.import_module(f"transformers.models.{folder}.configuration_{folder}")
    config_class = getattr(config_module, class_name)
    config = config_class(**OVERRIDES.get(name, {}))
    with torch.device("meta"):
        return model_class(name, folder, config_class)(config)


def kind_of(module):
    if isinstance(module, torch.nn.Embedding):
        return "Embedding"
    return "Linear" if isinstance(module, torch.nn.Linear) else type(module).__name__


def placement_text(parameter):
    if not isinstance(parameter, DTensor):
        return "N"
    (placement,) = parameter.placements
    if isinstance(placement, Replicate):
        return "R"
    dim = placement.dim if placement.dim >= 0 else placement.dim + parameter.ndim
    if isinstance(placement, _StridedShard):
        assert placement.split_factor == 2
        return f"P{dim}"
    assert isinstance(placement, Shard)
    return f"S{dim}"


def found_key(name, plan, is_weight):
    """The key of the rule that transformers finds, not just its style."""
    keys = {key: key for key in plan}
    return tensor_parallel._get_parameter_tp_plan(name, keys, is_weight=is_weight)


def effect(model, plan, mesh):
    """What the plan does to each module of the model, by path; the model is used up."""
    model._tp_plan = dict(plan)
    names = {name: [p for p, _ in module.named_parameters(recurse=False)] for name, module in model.named_modules()}
    tensor_parallel.apply_tensor_parallelism(model, mesh)
    out = {}
    for name, module in model.named_modules():
        call = found_key(name, plan, False)
        texts = [call or "-"]
        for parameter_name in names[name]:
            full = f"{name}.{parameter_name}" if name else parameter_name
            key = found_key(full, plan, True)
            if key is None:
                continue
            text = f"{parameter_name}={placement_text(module._parameters[parameter_name])}"
            texts.append(text if key == call else f"{text}@{key}")
        out[name] = " ".join(texts)
    return out


def tree_lines(model):
    lines = {}
    for name, module in model.named_modules():
        texts = [kind_of(module)]
        for parameter_name, parameter in module.named_parameters(recurse=False):
            texts.append(tensor_text(parameter_name, parameter))
        for buffer_name, buffer in module.named_buffers(recurse=False):
            texts.append(tensor_text(buffer_name + "(buffer)", buffer))
        lines[name] = " ".join(texts)
    return lines


def tensor_text(name, tensor):
    dtype = str(tensor.dtype).removeprefix("torch.")
    return f"{name}:{dtype}[{', '.join(map(str, tensor.shape))}]"


def fold(lines):
    """Lines whose paths differ in one number only become one with a range, innermost number first."""
    for place in range(max((path.count(".") for path in lines), default=0), -1, -1):
        groups = {}
        for path, text in lines.items():
            parts = path.split(".")
            if len(parts) > place and parts[place].isdigit():
                key = (tuple(parts[:place]), tuple(parts[place + 1 :]), text)
                groups.setdefault(key, []).append(int(parts[place]))
            else:
                groups[(path, text)] = None
        lines = {}
        for key, numbers in groups.items():
            if numbers is None:
                lines[key[0]] = key[1]
                continue
            for first, last in runs(sorted(numbers)):
                number = str(first) if first == last else "{%d..%d}" % (first, last)
                lines[".".join([*key[0], number, *key[1]])] = key[2]
    return lines


def runs(numbers):
    first = last = numbers[0]
    for number in numbers[1:]:
        if number != last + 1:
            yield first, last
            first = number
        last = number
    yield first, last


def section(name, entry, mesh):
    model = build(name)
    config = model.config
    tied = bool(getattr(config, "tie_word_embeddings", False)) and config.base_model_tp_plan is not None
    plans = {"tp": config.base_model_tp_plan, "ep": getattr(config, "base_model_ep_plan", None)}
    for form, key in (("tp", "base_model_tp_plan"), ("ep", "base_model_ep_plan")):
        expected = dict(entry.get(key) or {})
        if form == "tp" and tied:
            expected["embed_tokens"] = "embedding_rowwise"
        assert expected == (plans[form] or {}), (name, form)
    tree = tree_lines(model)
    columns = {form: effect(build(name), plan, mesh) for form, plan in plans.items() if plan}
    lines = {}
    for path, text in tree.items():
        texts = [text] + [columns[form][path] if form in columns else "" for form in ("tp", "ep")]
        lines[path or "(root)"] = " | ".join(texts).rstrip(" |")
    print(f"== {name} {type(model).__name__} {'tied' if tied else 'untied'}")
    for form, plan in plans.items():
        for key, style in sorted((plan or {}).items()):
            print(form, key, style)
    for path, text in fold(lines).items():
        print(path, text)


def main():
    transformers.logging.set_verbosity_error()
    with open(sys.argv[1]) as file:
        shipped = json.load(file)
    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    mesh = torch.distributed.init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
    print(f"# transformers {transformers.__version__}, torch {torch.__version__.split('+')[0]}: make_trees.py")
    failed = []
    for name, entry in sorted(shipped.items()):
        if name.startswith("__") or not ("base_model_tp_plan" in entry or "base_model_ep_plan" in entry):
            continue
        try:
            section(name, entry, mesh)
        except Exception as error:
            reason = re.sub(r"\s+", " ", f"{type(error).__name__}: {error}")[:160]
            failed.append(f"== {name} cannot be built: {reason}")
            print(failed[-1], file=sys.stderr)
    print("\n".join(failed))


if __name__ == "__main__":
    main()
