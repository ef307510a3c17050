"""Models that transformers has no class for, written over its Llama: what make_fixtures.py records for them.

Baichuan 2 7B: one projection W_pack for q, k and v, rows [q | k | v], and a head whose rows have length one. Baichuan 7B
has a plain head, and its class is spelt BaiChuan. DeciLM as Nemotron-NAS has it: each layer as `block_configs` says.
"""

import copy

import torch
from torch import nn
from transformers import LlamaConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput
from transformers.models.llama.modeling_llama import (
    LlamaAttention,
    LlamaMLP,
    LlamaRMSNorm,
    LlamaRotaryEmbedding,
    apply_rotary_pos_emb,
)


class BaichuanConfig(LlamaConfig):
    model_type = "baichuan"
    z_loss_weight: int | float = 0


class NemotronNasConfig(LlamaConfig):
    model_type = "nemotron-nas"
    block_configs: list | None = None


class PackedAttention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.num_heads = config.num_attention_heads
        self.head_dim = config.hidden_size // config.num_attention_heads
        self.W_pack = nn.Linear(config.hidden_size, 3 * config.hidden_size, bias=False)
        self.o_proj = nn.Linear(config.hidden_size, config.hidden_size, bias=False)

    def forward(self, hidden, rotary, mask):
        batch, length, _ = hidden.shape
        q, k, v = self.W_pack(hidden).unflatten(-1, (3, self.num_heads, self.head_dim)).permute(2, 0, 3, 1, 4)
        q, k = apply_rotary_pos_emb(q, k, *rotary)
        scores = q @ k.transpose(2, 3) / q.shape[-1] ** 0.5 + mask
        return self.o_proj((scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, length, -1))


class OwnKeyHeads(nn.Module):
    """Llama's attention with a number of key heads of its own."""

    def __new__(cls, config, queries_per_key, index):
        config = copy.deepcopy(config)
        config.num_key_value_heads = config.num_attention_heads // queries_per_key
        attention = LlamaAttention(config, index)
        whole = attention.forward
        attention.forward = lambda hidden, rotary, mask: whole(hidden, rotary, mask)[0]
        return attention


class LinearAttention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.linear_attn = nn.Linear(config.hidden_size, config.hidden_size, bias=False)

    def forward(self, hidden, rotary, mask):
        return self.linear_attn(hidden)


class LinearMlp(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.linear_mlp = nn.Linear(config.hidden_size, config.hidden_size, bias=False)

    def forward(self, hidden):
        return self.linear_mlp(hidden)


def ffn_width(ffn, hidden_size):
    """Two thirds of ffn_mult hidden sizes, up to the next multiple of 256; or what the config says outright."""
    if "intermediate_size" in ffn:
        return ffn["intermediate_size"]
    exact = int(2 * ffn["ffn_mult"] * hidden_size / 3)
    return exact if exact % 256 == 0 else exact + 256 - exact % 256


class Layer(nn.Module):
    def __init__(self, config, self_attn, mlp):
        super().__init__()
        if self_attn is not None:
            self.self_attn = self_attn
            self.input_layernorm = LlamaRMSNorm(config.hidden_size, config.rms_norm_eps)
        if mlp is not None:
            self.mlp = mlp
            self.post_attention_layernorm = LlamaRMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, hidden, rotary, mask):
        if hasattr(self, "self_attn"):
            hidden = hidden + self.self_attn(self.input_layernorm(hidden), rotary, mask)
        if hasattr(self, "mlp"):
            hidden = hidden + self.mlp(self.post_attention_layernorm(hidden))
        return hidden


class NormHead(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(config.vocab_size, config.hidden_size))

    def forward(self, hidden):
        return nn.functional.linear(hidden, nn.functional.normalize(self.weight))


class Body(nn.Module):
    def __init__(self, config, layers):
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size, config.pad_token_id)
        self.layers = nn.ModuleList(layers)
        self.norm = LlamaRMSNorm(config.hidden_size, config.rms_norm_eps)


class StandIn(PreTrainedModel):
    _supports_attention_backend = True

    def __init__(self, config):
        super().__init__(config)
        self.model = Body(config, [self.layer(config, i) for i in range(config.num_hidden_layers)])
        self.lm_head = self.head(config)
        self.post_init()

    def head(self, config):
        return nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    def forward(self, input_ids, labels, use_cache=False):
        length = input_ids.shape[1]
        hidden = self.model.embed_tokens(input_ids)
        rotary = LlamaRotaryEmbedding(self.config)(hidden, torch.arange(length)[None])
        mask = torch.full((length, length), float("-inf")).triu(1)[None, None]
        for layer in self.model.layers:
            hidden = layer(hidden, rotary, mask)
        logits = self.lm_head(self.model.norm(hidden))
        loss = nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        return CausalLMOutput(loss=loss, logits=logits)


class BaiChuanForCausalLM(StandIn):
    config_class = BaichuanConfig

    def layer(self, config, index):
        return Layer(config, PackedAttention(config), LlamaMLP(config))


class BaichuanForCausalLM(BaiChuanForCausalLM):
    def head(self, config):
        return NormHead(config)


class DeciLMForCausalLM(StandIn):
    config_class = NemotronNasConfig

    def layer(self, config, index):
        attention, ffn = config.block_configs[index]["attention"], config.block_configs[index]["ffn"]
        self_attn = mlp = None
        if attention["replace_with_linear"]:
            self_attn = LinearAttention(config)
        elif not attention["no_op"]:
            self_attn = OwnKeyHeads(config, attention["n_heads_in_group"], index)
        if ffn["replace_with_linear"]:
            mlp = LinearMlp(config)
        elif not ffn["no_op"]:
            own = copy.deepcopy(config)
            own.intermediate_size = ffn_width(ffn, config.hidden_size)
            mlp = LlamaMLP(own)
        return Layer(config, self_attn, mlp)
