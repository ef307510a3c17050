-- index.lua: which plan is for which architecture, by the class names of Hugging Face (config.json, "architectures").
return {
  BaiChuanForCausalLM = "baichuan",
  BaichuanForCausalLM = "baichuan",
  DeciLMForCausalLM = "nemotron_nas",
  Gemma3ForCausalLM = "gemma3",
  LlamaForCausalLM = "llama",
  Ministral3ForCausalLM = "ministral3",
  MistralForCausalLM = "mistral",
  Phi3ForCausalLM = "phi3",
  PhiForCausalLM = "phi",
  Qwen2ForCausalLM = "qwen2",
  Qwen3ForCausalLM = "qwen3",
}
