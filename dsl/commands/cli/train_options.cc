#include "dsl/commands/cli/train_options.h"

#include "dsl/commands/cli/number_option.h"

namespace moonshard {
namespace {

void AddData(CLI::App& app, TrainVerb& train) {
  app.add_option(
         "--data", train.data,
         "training data: .safetensors with a 1-D tensor `tokens` (and `document_ids`, the document of each), .bin of "
         "raw tokens, or any other file as text with one token per byte; or, for an exported program, .safetensors "
         "with the program's inputs by name, an example per row; a directory means all of its files; may be repeated")
      ->required()
      ->allow_extra_args(false);
  app.add_option("--data-dtype", train.data_dtype, "dtype of the tokens in a .bin file (default uint16)")
      ->check(CLI::IsMember({"uint16", "uint32"}));
  CLI::Option* eval_data = app.add_option("--eval-data", train.eval_data,
                                          "held-out data, as for --data; the run reports the loss on this data")
                               ->allow_extra_args(false);
  AddNumber(app, "--eval-every", train.eval_every, "steps between losses on --eval-data (default 0: at the end)")
      ->needs(eval_data);
}

void AddStep(CLI::App& app, TrainVerb& train) {
  AddNumber(app, "--steps", train.steps, "steps of the run, including those before a resume")->required();
  AddNumber(app, "--batch", train.batch,
            "global batch size in sequences or examples, over all dp ranks and micro-batches (default 8)");
  AddNumber(app, "--sequence", train.sequence, "tokens of a sequence (default 128); not for examples");
  AddNumber(app, "--micro-batches", train.micro_batches,
            "micro-batches per rank; gradients are accumulated (default 1)");
  app.add_option(
         "--loss", train.loss,
         "next-tokens (default for tokens): the cross-entropy of the next tokens; model (default for examples): "
         "the loss that an exported program returns; of tokens, with those of the sequence as labels")
      ->check(CLI::IsMember({"next-tokens", "model"}));
  AddNumber(app, "--loss-chunk", train.loss_chunk,
            "compute logits and loss in chunks of N tokens, recomputed in backward (default 0: all at once)");
  AddNumber(app, "--router-balance", train.router_balance,
            "coefficient of the load-balancing loss of the routers of a reference model with experts (default: "
            "router_aux_loss_coef of config.json if it has output_router_logits, else 0)");
  AddNumber(app, "--router-z", train.router_z,
            "coefficient of the z-loss of these routers (default: router_z_loss_coef of config.json if it has "
            "output_router_logits, else 0)");
  app.add_option("--dtype", train.run.dtype,
                 "float32 (default), float64, or bfloat16: matrix products in bfloat16 under autocast; parameters, "
                 "gradients and the optimizer state in float32")
      ->check(CLI::IsMember({"float32", "bfloat16", "float64"}));
}

void AddOptimizer(CLI::App& app, TrainVerb& train) {
  AddNumber(app, "--lr", train.lr, "peak learning rate (default 3e-4)");
  AddNumber(app, "--min-lr", train.min_lr, "learning rate at the end of the decay (default 0)");
  AddNumber(app, "--warmup", train.warmup, "steps of linear warmup to --lr (default 0)");
  app.add_option("--schedule", train.schedule, "decay of the learning rate: cosine (default), linear or constant")
      ->check(CLI::IsMember({"cosine", "linear", "constant"}));
  AddNumber(app, "--decay-steps", train.decay_steps, "step at which the decay ends (default 0: --steps)");
  AddNumber(app, "--weight-decay", train.weight_decay, "weight decay of parameters of two dims or more (default 0.1)");
  AddNumber(app, "--betas", train.betas, "beta1,beta2 of AdamW (default 0.9,0.95)")->delimiter(',');
  AddNumber(app, "--eps", train.eps, "epsilon of AdamW (default 1e-8)");
  AddNumber(app, "--clip", train.clip,
            "largest global gradient norm; larger gradients are scaled down (default 1; 0: no clipping)");
  AddNumber(app, "--skips", train.skips, "tolerated consecutive steps with non-finite loss or gradients (default 3)");
  AddNumber(
      app, "--ahead", train.ahead,
      "steps that the host may be ahead of the loss and the norm that it has read: 0 (default on a CPU) waits for "
      "them at the end of each step; 1 (default on a GPU) does not, and reports them a step later");
}

void AddRecord(CLI::App& app, TrainVerb& train) {
  CLI::Option* save = app.add_option(
      "--save", train.save, "directory for the run's checkpoints: saved at the end, and when a signal stops the run");
  AddNumber(app, "--save-every", train.save_every, "steps between saves, in the background (default 0: at the end)")
      ->needs(save);
  AddNumber(app, "--keep", train.keep, "checkpoints to keep (default 3; 0: all)")->needs(save);
  CLI::Option* resume =
      app.add_flag("--resume", train.resume, "resume from the latest checkpoint in --save, if there is one")
          ->needs(save);
  app.add_option(
         "--accept-changes", train.accept_changes,
         "resume although this differs from the saved run: data (the files of --data, --sequence, --seed), config (the "
         "model's config.json); may be repeated")
      ->allow_extra_args(false)
      ->check(CLI::IsMember({"data", "config"}))
      ->needs(resume);
  AddNumber(app, "--grace", train.grace,
            "seconds without progress after a signal to stop, after which a rank ends at once (default 20)");
  app.add_option("--log", train.log, "append JSON lines to this file, one per step");
  AddNumber(app, "--log-every", train.log_every, "steps between lines on stderr if it is not a terminal (default 10)");
  app.add_flag("--json", train.json, "print a summary as JSON on stdout");
}

Diagnostic BadStep(const std::string& message, const std::string& option, const std::string& required) {
  Diagnostic d = MakeDiagnostic(Finding::kBadInput, message);
  d.path = option;
  d.required = required;
  return d;
}

}  // namespace

// The ranges of the options keep these products far from the ends of int64_t.
Diagnostics CheckStep(const TrainVerb& verb, const MeshShape& mesh) {
  Diagnostics found;
  if (verb.loss == "model" && verb.loss_chunk > 0) {
    found.push_back(BadStep("the loss of the model cannot be computed in chunks of tokens", "--loss-chunk",
                            "--loss next-tokens, or no --loss-chunk"));
  }
  const int64_t ranks = mesh.data_ranks();
  if (verb.batch % (ranks * verb.micro_batches) != 0) {
    found.push_back(BadStep("a batch of " + std::to_string(verb.batch) + " is not divisible by " +
                                std::to_string(ranks) + " data-parallel ranks times " +
                                std::to_string(verb.micro_batches) + " micro-batches",
                            "--batch", "a multiple of " + std::to_string(ranks * verb.micro_batches)));
  }
  const int64_t sequence = verb.sequence.value_or(kSequence);
  if (verb.batch * sequence > kMostTokens) {
    found.push_back(BadStep("a step of " + std::to_string(verb.batch) + " sequences of " + std::to_string(sequence) +
                                " tokens is too large",
                            "--batch", "at most " + std::to_string(kMostTokens) + " tokens together"));
  }
  return found;
}

void AddRanks(CLI::App& app, RunOptions& run) {
  app.add_option("--device", run.device, "auto (default: cuda if there is a GPU, else cpu), cpu or cuda")
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}));
  app.add_option("--backend", run.backend,
                 "library that communicates between ranks: auto (default: nccl on GPUs, else gloo), gloo or nccl; over "
                 "gloo, ranks may share a GPU")
      ->check(CLI::IsMember({"auto", "gloo", "nccl"}));
  AddNumber(app, "--timeout", run.timeout_s,
            "seconds to wait for another rank (default " + std::to_string(static_cast<int64_t>(run.timeout_s)) + ")");
}

void AddTrain(CLI::App& app, TrainVerb& train) {
  AddNumber(app, "--init", train.init,
            "start from new random weights with this seed; MODEL then needs only config.json");
  AddData(app, train);
  AddStep(app, train);
  AddOptimizer(app, train);
  AddRecord(app, train);
  AddNumber(
      app, "--check-inputs", train.check_inputs,
      "compare all input values across tp ranks every N calls of the model (default 0: only integer inputs on the "
      "CPU, at every call)");
  AddNumber(app, "--check-replicas", train.check_replicas,
            "compare the parameters that several ranks hold every N steps, and end if they differ (default 0: never)");
  AddNumber(app, "--seed", train.seed, "seed of data order and dropout (default 0)");
  AddRanks(app, train.run);
}

}  // namespace moonshard
