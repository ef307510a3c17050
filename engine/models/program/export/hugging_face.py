"""Hugging Face models for export: built from their config without weights, with example inputs for their forward."""

import contextlib
import copy
import inspect
import json
import pathlib
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
import transformers
from torch.export import Dim
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes
from transformers import initialization, masking_utils, modeling_rope_utils
from transformers.integrations import moe, sdpa_attention
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, PreTrainedModel
from transformers.utils import generic

from tracing import without_values

KINDS = {
    "input_ids": "ids", "decoder_input_ids": "ids", "labels": "labels", "attention_mask": "mask",
    "decoder_attention_mask": "mask", "position_ids": "positions", "pixel_values": "pixels", "image_grid_thw": "grid",
    "input_features": "audio", "input_values": "audio", "token_type_ids": "types", "mm_token_type_ids": "types",
}  # fmt: skip


# --- Models -----------------------------------------------------------------------------------------------------------
def load_config(folder: pathlib.Path, trust_remote_code: bool = False) -> transformers.PreTrainedConfig:
    return transformers.AutoConfig.from_pretrained(folder, trust_remote_code=trust_remote_code)


def model_class(config: transformers.PreTrainedConfig, trust_remote_code: bool = False) -> Any:
    """The class that the config names, else the first of: causal LM, image and text, seq2seq, speech, base model."""
    for name in config.architectures or ():
        if hasattr(transformers, name):
            return getattr(transformers, name)
    if trust_remote_code and getattr(config, "auto_map", None):
        return transformers.AutoModelForCausalLM
    for auto in (transformers.AutoModelForCausalLM, transformers.AutoModelForImageTextToText,
                 transformers.AutoModelForSeq2SeqLM, transformers.AutoModelForSpeechSeq2Seq,
                 transformers.AutoModel):  # fmt: skip
        if type(config) in auto._model_mapping:
            return auto._model_mapping[type(config)]
    raise ValueError(f"transformers {transformers.__version__} has no model for {type(config).__name__}")


def build(
    config: transformers.PreTrainedConfig,
    dtype: torch.dtype,
    attention: str | None = None,
    experts: str | None = None,
    folder: pathlib.Path | None = None,
    trust_remote_code: bool = False,
) -> PreTrainedModel:
    """The model on the CPU with the weights in `folder`, or with random weights if there is no `folder`."""
    cls, options = model_class(config, trust_remote_code), {"dtype": dtype}
    if attention:
        options["attn_implementation"] = attention
    if experts:
        options["experts_implementation"] = experts
    if trust_remote_code:
        options["trust_remote_code"] = True
    make = cls.from_config if not issubclass(cls, PreTrainedModel) else cls._from_config
    if folder is not None:
        model = cls.from_pretrained(folder, config=config, **options)
        with torch.device("meta"), initialization.meta_device_safe_creation_ops():
            made = dict(make(copy.deepcopy(config), **options).named_parameters())
        for name, parameter in model.named_parameters():
            # from_pretrained makes parameters trainable that the constructor freezes.
            parameter.requires_grad_(name not in made or made[name].requires_grad)
    else:
        model = _kept_types(make(config, **options), dtype)
    _as_buffers(model)
    for part in model.modules():
        # Without an entry in the config, as of Data2Vec, it is on.
        if getattr(getattr(part, "config", None), "apply_spec_augment", hasattr(part, "_mask_hidden_states")):
            part.config.apply_spec_augment = False  # draws its masks with numpy
            model.without_spec_augment = True
    if not experts and getattr(model.config, "_experts_implementation", None) == "grouped_mm" and not _aligned(model):
        model.set_experts_implementation("batched_mm")
    return model


def _as_buffers(model: PreTrainedModel) -> None:
    """Makes non-persistent buffers of frozen parameters that the model computes and checkpoints do not have."""
    parameters = dict(model.named_parameters())
    for name in getattr(model, "_keys_to_ignore_on_save", None) or ():
        if name in parameters and not parameters[name].requires_grad:
            path, _, leaf = name.rpartition(".")
            module = model.get_submodule(path)
            del module._parameters[leaf]
            module.register_buffer(leaf, parameters[name].data, persistent=False)


def _aligned(model: PreTrainedModel) -> bool:
    """Whether the rows of stacked experts are multiples of 16 bytes, as grouped_mm requires."""
    stacks = [
        p for module in model.modules() if hasattr(module, "is_transposed") for p in module.parameters(recurse=False)
    ]
    return all(size * p.element_size() % 16 == 0 for p in stacks if p.dim() == 3 for size in p.shape[1:])


def build_fake(config: transformers.PreTrainedConfig, dtype: torch.dtype, **options: Any) -> PreTrainedModel:
    """The model with tensors that have a shape and no values, except buffers that checkpoints do not have."""
    with torch.device("meta"), initialization.meta_device_safe_creation_ops():
        model = build(config, dtype, **options)
    missing = _restore_buffers(model)
    if missing:  # values that only the constructor computes; weights are allocated and never written
        with initialization.no_init_weights():
            made = build(config, dtype, **options)
        for name in missing:
            path, _, leaf = name.rpartition(".")
            model.get_submodule(path)._buffers[leaf] = made.get_buffer(name)
    without_values(model)
    return model


def owner_of(model: PreTrainedModel, path: str) -> PreTrainedModel:
    """The innermost PreTrainedModel at or above `path`: its `_init_weights` initializes the module at `path`."""
    parts = path.split(".")
    for i in range(len(parts), -1, -1):
        owner = model.get_submodule(".".join(parts[:i]))
        if isinstance(owner, PreTrainedModel):
            return owner
    return model


def _restore_buffers(model: PreTrainedModel) -> list[str]:
    """Computes the buffers that checkpoints do not have; returns the names of those that still have no values."""
    own: dict[str, torch.Tensor] = {}
    for path, module in model.named_modules():
        for name in module._non_persistent_buffers_set:
            if module._buffers.get(name) is not None:
                unset = torch.zeros_like(module._buffers[name], device="cpu")
                unset = unset.fill_(torch.nan if unset.is_floating_point() else 77)
                own[f"{path}.{name}" if path else name] = module._buffers[name] = unset
    for path, module in model.named_modules():
        own_model = isinstance(module, PreTrainedModel)
        if own_model or any(module._buffers.get(name) is not None for name in module._non_persistent_buffers_set):
            try:
                owner_of(model, path)._init_weights(module)
            except (NotImplementedError, RuntimeError):
                continue  # an initialization that reads values
    return [name for name, b in own.items()
            if b.numel() and (bool(b.isnan().any()) if b.is_floating_point() else bool((b == 77).all()))]  # fmt: skip


def _kept_types(model: PreTrainedModel, dtype: torch.dtype) -> PreTrainedModel:
    """Keeps some modules in float32, as from_pretrained does and from_config does not."""
    for pattern, kept in model._get_dtype_plan(dtype).items():
        expression = re.compile(pattern.replace("*", ".*"))
        for name, parameter in model.named_parameters():
            if expression.search(name):
                parameter.data = parameter.data.to(kept)
    return model


def randomise(model: torch.nn.Module, seed: int = 0) -> None:
    """Adds noise to every floating-point parameter: initial zeros and ones would hide differences."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.is_floating_point():
                parameter += 0.05 * torch.randn(parameter.shape, generator=generator).to(parameter.dtype)


# --- Tracing ----------------------------------------------------------------------------------------------------------
def _sdpa(
    module, query, key, value, attention_mask, dropout=0.0, scaling=None, is_causal=None, position_bias=None, **_
):
    """transformers' `sdpa` without its tests for a length of 1 and for caches, which would become guards."""
    causal = attention_mask is None and (is_causal if is_causal is not None else getattr(module, "is_causal", True))
    options: dict[str, Any] = {}
    if _example_of(getattr(module, "num_key_value_groups", 1)) > 1:
        if attention_mask is None and key.shape[-1] == value.shape[-1] <= 256:
            options["enable_gqa"] = True
        else:
            key = _repeat_kv(key, module.num_key_value_groups)
            value = _repeat_kv(value, module.num_key_value_groups)
    if position_bias is not None:
        attention_mask = sdpa_attention.create_position_bias_mask(position_bias, attention_mask, causal, query, key)
        causal = False
    options |= {"attn_mask": attention_mask, "dropout_p": dropout, "scale": scaling, "is_causal": bool(causal)}
    result = torch.nn.functional.scaled_dot_product_attention(query, key, value, **options)
    return result.transpose(1, 2).contiguous(), None


def _example_of(number: Any) -> Any:
    """The value of a number in the example, without a guard."""
    return number.node.hint if isinstance(number, torch.SymInt) else number


def _repeat_kv(hidden_states: torch.Tensor, n_rep: Any) -> torch.Tensor:
    """transformers' function, with its test for 1 on the example only: a rank may repeat each key head once."""
    if _example_of(n_rep) == 1:
        return hidden_states
    batch, heads, length, size = hidden_states.shape
    return hidden_states[:, :, None].expand(batch, heads, n_rep, length, size).reshape(batch, heads * n_rep, length, size)


def _sdpa_mask(*args: Any, **kwargs: Any) -> torch.Tensor | None:
    """transformers' mask for `sdpa`. Returns None where transformers makes no mask for any length outside of tracing:
    for causal or full attention without padding or windows."""
    if kwargs.get("attention_mask") is None and kwargs.get("local_size") is None and not kwargs.get("q_offset"):
        if kwargs.get("allow_is_causal_skip", True) and not kwargs.get("allow_is_bidirectional_skip"):
            return None
        if kwargs.get("allow_is_bidirectional_skip"):
            return None
    # With vmap the graph could not be written; the functions of masks work on indices that are broadcast, too.
    return masking_utils.sdpa_mask(*args, **{**kwargs, "use_vmap": False})


# Patches of transformers' own exporter that are not applied here: they force a kernel, or equal sizes of images.
_UNNEEDED = ("_patch_sdpa", "_patch_chunked_vision_attention")


class Known(torch.Tensor):
    """A tensor whose values are known while tracing: operators on known tensors only are not part of the graph."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        tensors = [one for one in pytree.tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor)]
        plain = pytree.tree_map_only(Known, lambda one: one.as_plain(), (args, kwargs))
        if not all(isinstance(one, Known) for one in tensors):
            return func(*plain[0], **plain[1])
        with _disable_current_modes(), torch._C.DisableTorchFunction():
            return _known(func(*plain[0], **plain[1]))

    def as_plain(self) -> torch.Tensor:
        with torch._C.DisableTorchFunctionSubclass():
            return self.as_subclass(torch.Tensor)


def _known(values: Any) -> Any:
    return pytree.tree_map_only(torch.Tensor, lambda one: one.as_subclass(Known), values)


def _on_known(function: Callable) -> Callable:
    """Runs a function outside of the graph if its first argument is known."""

    def replacement(*args: Any, **kwargs: Any) -> Any:
        if not args or not isinstance(args[0], Known):
            return function(*args, **kwargs)
        args, kwargs = pytree.tree_map_only(Known, lambda one: one.as_plain(), (args, kwargs))
        with _disable_current_modes(), torch._C.DisableTorchFunction():
            return _known(function(*args, **kwargs))

    return replacement


@contextlib.contextmanager
def traceable(packed: bool = False) -> Iterator[None]:
    """Replaces functions of transformers that compute differently under torch.export than in eager mode, while tracing.

    Stacked experts call an operator that transformers defines, and tracing replaces it by PyTorch's operator: the shape
    function of PyTorch's operator accepts only bfloat16.

    packed: positions are an input and may separate sequences that are packed into one row; else they are 0, 1, 2, ...
    """
    with contextlib.ExitStack() as stack:
        try:
            from transformers.exporters import exporter_dynamo, utils
        except ImportError:
            pass
        else:
            del exporter_dynamo  # registers the patches
            patches = [p for p in utils._PATCHES.get("dynamo", []) if p[2].__name__ not in _UNNEEDED]
            stack.enter_context(utils.patch_attributes(patches))
        stack.enter_context(_item(ALL_ATTENTION_FUNCTIONS._global_mapping, "sdpa", _sdpa))
        stack.enter_context(_item(masking_utils.ALL_MASK_ATTENTION_FUNCTIONS._global_mapping, "sdpa", _sdpa_mask))
        if not packed:
            preprocess = masking_utils._preprocess_mask_arguments
            stack.enter_context(_attribute(masking_utils, "_preprocess_mask_arguments", _without_positions(preprocess)))
            stack.enter_context(_attribute(modeling_rope_utils, "torch", _CountingUp()))
        for module in [one for name, one in sys.modules.items() if name.startswith("transformers.models.")]:
            repeat = vars(module).get("repeat_kv")
            if getattr(repeat, "__code__", None) and repeat.__code__.co_code == sdpa_attention.repeat_kv.__code__.co_code:
                stack.enter_context(_attribute(module, "repeat_kv", _repeat_kv))
            for name in [name for name in vars(module) if name.startswith("get_vision_")]:
                stack.enter_context(_attribute(module, name, _on_known(getattr(module, name))))
            if "is_torchdynamo_exporting" in vars(module) and "torch_chunk_gated_delta_rule" in vars(module):
                # Qwen3.5 and similar models unroll a loop under export, in place of a triangular solver.
                stack.enter_context(_attribute(module, "is_torchdynamo_exporting", lambda: False))
            if "torch_compilable_check" in vars(module):  # checks of values, as of the number of image tokens
                stack.enter_context(_attribute(module, "torch_compilable_check", lambda *_, **__: None))
        stack.enter_context(without_dropped_layers())
        stack.enter_context(_attribute(torch.nn.Module, "to", _to_another(torch.nn.Module.to)))
        stack.enter_context(_attribute(moe, "_can_use_grouped_mm", lambda *_: False))
        stack.enter_context(_autocast_regions())
        yield


def _to_another(to: Callable) -> Callable:
    """`Module.to` for tracing, where it cannot replace parameters: a module that has the dtype already stays as it is."""

    def replacement(self: torch.nn.Module, *args: Any, **kwargs: Any) -> torch.nn.Module:
        device, dtype, *_ = torch._C._nn._parse_to(*args, **kwargs)
        if device is None and all(one.dtype == dtype for one in self.parameters()):
            return self
        return to(self, *args, **kwargs)

    return replacement


@contextlib.contextmanager
def _autocast_regions() -> Iterator[None]:
    """Keeps the regions in the graph in which a model disables autocast. Without autocast, transformers enters no such
    region, and the program would compute rotary angles and routers in bfloat16 under autocast.

    The code of the function is replaced, because other modules import the function by name.
    """
    own = getattr(generic, "maybe_autocast", None)
    if own is None:
        yield
        return
    with _attribute(own, "__code__", _autocast.__code__):
        yield


def _autocast(
    device_type: str, dtype: torch.dtype | None = None, enabled: bool = True, cache_enabled: bool | None = None
) -> Any:
    import torch

    return torch.autocast(device_type, dtype=dtype, enabled=enabled, cache_enabled=cache_enabled)


@contextlib.contextmanager
def without_dropped_layers() -> Iterator[None]:
    """Disables layerdrop: a model draws one number per layer and skips the layer, which a graph cannot express."""
    rand = torch.rand
    with _attribute(torch, "rand", lambda *size, **more: 1.0 if size == ([],) and not more else rand(*size, **more)):
        yield


class _CountingUp:
    """`torch` for code that selects rotary frequencies by length: the largest position is the length minus 1."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def max(self, tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if args or kwargs or tensor.is_floating_point():
            return torch.max(tensor, *args, **kwargs)
        return tensor.shape[-1] - 1


def _without_positions(preprocess: Callable) -> Callable:
    signature = inspect.signature(preprocess)

    def replacement(*args: Any, **kwargs: Any) -> tuple:
        bound = signature.bind(*args, **kwargs)
        bound.arguments["position_ids"] = None
        return preprocess(*bound.args, **bound.kwargs)

    return replacement


@contextlib.contextmanager
def _item(table: dict, key: str, value: Any) -> Iterator[None]:
    before = table[key]
    table[key] = value
    try:
        yield
    finally:
        table[key] = before


@contextlib.contextmanager
def _attribute(owner: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


# --- Inputs -----------------------------------------------------------------------------------------------------------
def default_inputs(model: PreTrainedModel) -> list[str]:
    """The default inputs: the main input, the other input of a two-tower model (CLIP), decoder ids if the model has a
    decoder, and labels if the model computes a loss from labels. A classifier of rows makes the decoder ids itself."""
    takes = inspect.signature(model.forward).parameters
    names = [model.main_input_name]
    if names == ["inputs"]:  # of any kind, as of Perceiver: the argument for the kind of this class
        names = [name for name in ("input_ids", "input_values", "pixel_values") if name in takes][:1] or names
    if "pixel_values" in takes and names == ["input_ids"] and type(model).__name__.endswith("Model"):
        names.append("pixel_values")
    if names == ["pixel_values"] and "input_ids" in takes and takes["input_ids"].default is inspect.Parameter.empty:
        names.append("input_ids")
    if model.config.is_encoder_decoder and "decoder_input_ids" in takes and _labels_of(model) != "rows":
        names.append("decoder_input_ids")
    return [*names, "labels"] if "labels" in takes and _labels_of(model) else names


def input_sets(model: PreTrainedModel) -> list[list[str]]:
    """The sets of inputs for a directory of programs: the default inputs, and these with a padding mask, with positions, and
    with token types, as far as the model takes them. What is not among the inputs of a call, the model makes itself, and
    often in another way than from values that mean the same: so each set is a program."""
    names, takes = default_inputs(model), inspect.signature(model.forward).parameters
    if names[0] != "input_ids":
        return [names]
    more = [["attention_mask"]] if "attention_mask" in takes else []
    if "decoder_input_ids" in names:
        more += [[*one, "decoder_attention_mask"] for one in more if "decoder_attention_mask" in takes]
    elif "position_ids" in takes and not hasattr(getattr(model, "model", None), "get_rope_index"):
        more += [["position_ids"], *([*one, "position_ids"] for one in more)]
    if "token_type_ids" in takes and getattr(model.config, "type_vocab_size", 0) > 1:
        more += [["token_type_ids"], *([*one, "token_type_ids"] for one in more)]
    place = names.index("labels") if "labels" in names else len(names)
    return [names, *([*names[:place], *one, *names[place:]] for one in more)]


def _labels_of(model: PreTrainedModel) -> str | None:
    """Returns "tokens" if the model takes one label per token, "rows" if one label per row; None if it takes no labels,
    or labels of which no example can be made: the length of CTC labels depends on their values."""
    kind = type(model).__name__
    if re.search(r"For(Sequence|Image|Audio|Video)Classification$", kind):
        return "rows"
    if model.can_generate() or re.search(r"For(CausalLM|MaskedLM|TokenClassification|ConditionalGeneration)$", kind):
        return "tokens"
    return None


def example_inputs(
    model: PreTrainedModel, names: list[str], batch: int, sequence: int, seed: int = 0
) -> tuple[dict[str, torch.Tensor], dict[str, dict[int, Any]]]:
    """Random inputs by name, and their dynamic dims. A decoder's length differs from the encoder's."""
    config, text = model.config, model.config.get_text_config()
    generator = torch.Generator().manual_seed(seed)
    special = {value for key, value in vars(config).items() if key.endswith("_token_id") and isinstance(value, int)}
    allowed = torch.tensor([i for i in range(1, min(getattr(text, "vocab_size", 2), 32000)) if i not in special] or [0])

    def ids(length: int) -> torch.Tensor:
        return allowed[torch.randint(len(allowed), (batch, length), generator=generator)]

    def classes(*size: int) -> torch.Tensor:
        return torch.randint(config.num_labels, size, generator=generator)

    decoded = max(2, sequence * 2 // 3) if config.is_encoder_decoder else sequence
    inputs: dict[str, torch.Tensor] = {}
    varying: dict[str, dict[int, Any]] = {}
    for name in names:
        own, dims = None, {0: Dim.AUTO, 1: Dim.AUTO}
        if name == "input_ids":
            own = ids(sequence)
            if config.is_encoder_decoder and _labels_of(model) == "rows" and config.eos_token_id is not None:
                own[:, -1] = config.eos_token_id  # such a model classifies this token
        elif name == "labels" and _labels_of(model) == "rows":
            own, dims = classes(batch), {0: Dim.AUTO}
        elif name == "labels" and type(model).__name__.endswith("ForTokenClassification"):
            own = classes(batch, sequence)
        elif name == "labels" and config.model_type == "perceiver":  # whose logits have a fixed length
            own, dims = ids(config.max_position_embeddings), {0: Dim.AUTO}
        elif name in ("labels", "decoder_input_ids"):
            own = ids(decoded)
        elif name in ("attention_mask", "decoder_attention_mask"):
            frames = inputs[names[0]].shape[1] if names[0] in ("input_features", "input_values") else sequence
            own = torch.ones(batch, decoded if name.startswith("decoder") else frames, dtype=torch.int64)
            own[-1, : own.shape[1] // 4] = 0
        elif name == "position_ids" and hasattr(getattr(model, "model", None), "get_rope_index"):
            own, dims = None, {2: Dim.AUTO}  # made from the other inputs, below
        elif name == "position_ids":
            own = torch.arange(sequence).expand(batch, sequence).contiguous()
        elif name in ("token_type_ids", "mm_token_type_ids"):
            own = torch.zeros(batch, sequence, dtype=torch.int64)
        elif name == "input_features" and hasattr(config, "num_mel_bins"):  # Whisper's, of a fixed length
            length = 2 * getattr(config, "max_source_positions", sequence)
            own, dims = torch.randn(batch, config.num_mel_bins, length, generator=generator), {0: Dim.AUTO}
        elif name == "input_features" and _frame_width(model):
            own = torch.randn(batch, 8 * sequence, _frame_width(model), generator=generator)
        elif name == "pixel_values" and hasattr(config, "vision_config") and "image_grid_thw" in names:
            own, dims = _patches(config.vision_config, batch, generator), {}
        elif name == "image_grid_thw":
            own, dims = torch.tensor([[1, 4, 4]] * batch), {}
        elif name == "pixel_values":
            vision = getattr(config, "vision_config", config)
            size = getattr(vision, "image_size", None) or 64  # configs of convolutional models have no image size
            height, width = (size, size) if isinstance(size, int) else size
            own = torch.randn(batch, getattr(vision, "num_channels", 3), height, width, generator=generator)
            dims = {0: Dim.AUTO}
        elif name == "input_values" and hasattr(config, "frequency_stride"):  # a spectrogram, of a fixed length
            own, dims = torch.randn(batch, config.max_length, config.num_mel_bins, generator=generator), {0: Dim.AUTO}
        elif name == "input_values":
            own = torch.randn(batch, 400 + 320 * sequence, generator=generator)  # samples; 320 are a frame of wav2vec 2.0
        if own is None and name != "position_ids":
            raise ValueError(f"no example can be made for the input {name}: call export() in Python with your inputs")
        if own is not None and own.is_floating_point():
            own = own.to(model.dtype)
        inputs[name], varying[name] = own, dims
    _place_images(config, inputs)
    if "image_grid_thw" in inputs:  # the number of rows follows from the number of images
        varying = {name: {dim: how for dim, how in dims.items() if dim > 0} for name, dims in varying.items()}
    if inputs.get("position_ids", ()) is None:
        types = (inputs["input_ids"] == config.image_token_id).long()
        inputs["position_ids"] = model.model.get_rope_index(
            inputs["input_ids"], image_grid_thw=inputs.get("image_grid_thw"), mm_token_type_ids=types)[0]  # fmt: skip
    return inputs, varying


def _frame_width(model: PreTrainedModel) -> int:
    """Numbers of a frame of audio that an encoder takes as rows of frames; 0: unknown."""
    first = next(part for part in model.modules() if any(True for _ in part.parameters(recurse=False)))
    if isinstance(first, torch.nn.Linear):  # takes the frames, which may be several of num_mel_bins
        return first.in_features
    config = model.config
    parts = [config, *(getattr(config, name, None) for name in config.sub_configs)]
    for part in parts:
        for name in ("num_mel_bins", "feature_projection_input_dim"):
            if isinstance(getattr(part, name, None), int):
                return getattr(part, name)
    return getattr(config, "input_feat_per_channel", 0) * getattr(config, "input_channels", 1)


def known_inputs(inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Removes and returns the inputs whose values determine how a model splits tensors: constants of the program."""
    return {name: inputs.pop(name).as_subclass(Known) for name in list(inputs) if KINDS.get(name) == "grid"}


def _patches(vision: Any, images: int, generator: torch.Generator) -> torch.Tensor:
    """Pixels of images of 4 x 4 patches each, as the processors of Qwen2-VL and similar models flatten them."""
    channels = getattr(vision, "in_channels", None) or getattr(vision, "in_chans", 3)
    width = channels * vision.temporal_patch_size * vision.patch_size**2
    return torch.randn(images * 16, width, generator=generator)


def _place_images(config: Any, inputs: dict[str, torch.Tensor]) -> None:
    token = getattr(config, "image_token_id", None)
    if "pixel_values" not in inputs or "input_ids" not in inputs or token is None:
        return
    if "image_grid_thw" in inputs:
        count = 16 // config.vision_config.spatial_merge_size**2
    else:
        count = getattr(config, "mm_tokens_per_image", None) or config.image_seq_length
    inputs["input_ids"][:, 1 : 1 + count] = token
    if "mm_token_type_ids" in inputs:
        inputs["mm_token_type_ids"][:, 1 : 1 + count] = 1


def kind_of(name: str) -> str:
    return KINDS.get(name, "other")


def forward_options(model: PreTrainedModel) -> dict[str, Any]:
    """Constant arguments of each call: no cache, which would be an output that training does not need."""
    return {"use_cache": False} if hasattr(model.config, "use_cache") or model.can_generate() else {}


def notes(model: PreTrainedModel) -> list[str]:
    """Notes on differences between this model and its program."""
    drops = [f"{name}={value}" for name, value in vars(model.config).items() if "layerdrop" in name and value]
    found = [f"Layers are never dropped at random in training: {', '.join(drops)}"] if drops else []
    if getattr(model, "without_spec_augment", False):
        found.append("SpecAugment, which masks frames at random in training, is not in the program")
    if getattr(model.config, "quantization_config", None):
        found.append("The checkpoint is quantized: the program computes with unquantized weights")
    return found


def config_text(folder: pathlib.Path | None, config: transformers.PreTrainedConfig) -> str:
    if folder is not None and (folder / "config.json").is_file():
        return (folder / "config.json").read_text()
    return json.dumps(json.loads(config.to_json_string(use_diff=False)))
