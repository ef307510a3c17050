-- index.lua: which plan is for which architecture, by the class names of Hugging Face (config.json, "architectures").
return {
  LlamaForCausalLM = "llama",
  MistralForCausalLM = "mistral",
}
