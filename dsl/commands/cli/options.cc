#include "dsl/commands/cli/options.h"

#include <CLI/CLI.hpp>

#include <algorithm>

#include "dsl/commands/cli/number_option.h"
#include "dsl/commands/cli/text_verbs.h"
#include "dsl/commands/cli/train_options.h"
#include "engine/core/base/text.h"
#include "engine/core/base/version.h"
#include "engine/core/base/visible.h"
#include "engine/io/exported_program/program_archive.h"

namespace moonshard {
namespace {

constexpr const char* kAbout =
    "Tensor-parallel plans as Lua scripts, applied by a C++ engine.\n"
    "MODEL is a directory in Hugging Face form (config.json and safetensors), or an exported program: an archive "
    "(.pt2)\n"
    "or a directory of archives. stdout is data, stderr is diagnostics.\n"
    "Exit codes: 0 success;\n"
    "1 `check` found errors (a plan or model that cannot be read is an error too), or the work failed;\n"
    "2 usage error, or an invalid plan or model under any other verb; 3 a bug in moonshard.";

// MODEL and --program.
void AddModelAlone(CLI::App& app, ModelOptions& model, bool required = true) {
  app.add_option("MODEL", model.model,
                 "model directory: config.json and safetensors (headers are enough for a verb that reads no weights); "
                 "or an exported program: .pt2, or a directory with one for each set of inputs and each length. Its "
                 "weights are those that the exporter stored with --weights")
      ->required(required);
  app.add_option(
      "--program", model.program,
      "exported program of the model (.pt2, or a directory with one for each set of inputs and each length), run in "
      "place of the reference architecture, with the weights in MODEL; MODEL itself may be an exported program");
}

void AddModel(CLI::App& app, ModelOptions& model, std::vector<std::string>& plan_options, bool required = true) {
  AddModelAlone(app, model, required);
  app.add_option("--plan", model.plan,
                 "plan file, the name of a shipped plan, or hf:FILE[#KEY]; default: chosen by architecture");
  app.add_option("--mesh", model.mesh,
                 "axes and sizes, as in tp=2,dp=4: tp, cp (or two factors of it, cp=2x4), ep, dp (= dp_shard) and "
                 "dp_replicate; default: one rank");
  app.add_option("--option", plan_options, "an option of the plan, as in sequence_parallel=true; may be repeated")
      ->allow_extra_args(false);
  app.add_flag("--isolate", model.isolate, "evaluate the plan in a child process under limits: for an untrusted plan");
}

void AddAdapter(CLI::App& app, ModelOptions& model) {
  app.add_option(
         "--adapter", model.adapters,
         "directory with a LoRA adapter in the files of PEFT (adapter_config.json, adapter_model.safetensors); "
         "its modules, ranks and scales replace the plan's `lora` sections. May be repeated, as NAME=DIR; an existing "
         "directory with '=' in its name is DIR")
      ->allow_extra_args(false);
  app.add_option(
         "--lora", model.lora,
         "a new LoRA adapter in place of the plan's `lora` sections, as in rank=8,alpha=16,target=q_proj+v_proj: "
         "the keys of `lora`, and target with the ends of paths of modules, by default the targets that PEFT has "
         "for the model; may be repeated, and the first that names a module applies to it")
      ->allow_extra_args(false);
  app.add_option("--active", model.active, "name of the adapter that is computed with and trained; default: the first");
}

// --format and --color as given; ReadFindingsOutput interprets them.
struct FindingsOutputWords {
  std::string format = "text";
  std::string color = "auto";
};

void AddColor(CLI::App& app, FindingsOutputWords& words) {
  app.add_option("--color", words.color, "auto (on a terminal, subject to NO_COLOR and CLICOLOR_FORCE), always, never")
      ->check(CLI::IsMember({"auto", "always", "never"}));
}

void AddFindingsOutput(CLI::App& app, FindingsOutputWords& words) {
  app.add_option("--format", words.format, "the form of findings: text, json, sarif (2.1.0) or github (annotations)")
      ->check(CLI::IsMember({"text", "json", "sarif", "github"}));
  AddColor(app, words);
}

FindingsOutput ReadFindingsOutput(const FindingsOutputWords& words) {
  const ColorChoice color = words.color == "always"  ? ColorChoice::kAlways
                            : words.color == "never" ? ColorChoice::kNever
                                                     : ColorChoice::kAuto;
  return {FindingFormFromName(words.format).value_or(FindingForm::kText), color, ""};
}

// The file of --plan, else the file by which a plan is chosen: the program, or the config.json of the directory.
std::string SubjectOf(const ModelOptions& model) {
  if (model.plan.ends_with(".lua")) return model.plan;
  if (model.plan.starts_with("hf:")) return model.plan.substr(3, model.plan.find('#') - 3);
  if (!model.plan.empty() && model.plan.find('/') == std::string::npos) return "plans/" + model.plan + ".lua";
  if (model.plan.empty() && IsProgramPath(model.model)) return model.model;
  return model.plan.empty() ? model.model + (model.model.ends_with('/') ? "" : "/") + "config.json" : model.plan;
}

void AddDType(CLI::App& app, std::string& dtype) {
  app.add_option("--dtype", dtype,
                 "dtype of the parameters; auto: that of the program, else of the config, else of the checkpoint")
      ->check(CLI::IsMember({"auto", "float32", "bfloat16", "float16", "float64"}));
}

void AddRun(CLI::App& app, RunOptions& run) {
  AddDType(app, run.dtype);
  AddRanks(app, run);
}

void AddConvert(CLI::App& app, std::string& out, bool& replace, bool& json) {
  app.add_option("OUT", out,
                 "directory to write; it appears when it is complete. If a run is interrupted, the next run with the "
                 "same OUT resumes it")
      ->required();
  app.add_flag("--replace", replace, "replace an existing OUT");
  app.add_flag("--json", json, "print a summary as JSON on stdout");
}

// Splits "k=v" texts into the map. False, with a message in `error`, for one without '='.
bool ReadPlanOptions(const std::vector<std::string>& texts, ModelOptions& model, std::string& error) {
  for (const std::string& text : texts) {
    const size_t equals = text.find('=');
    if (equals == std::string::npos || equals == 0) {
      error = "--option " + text + ": an option of the plan has the form name=value";
      return false;
    }
    model.options[text.substr(0, equals)] = text.substr(equals + 1);
  }
  return true;
}

std::string Near(const std::string& word, const std::vector<std::string>& names) {
  const std::string help = DidYouMean(word, names);
  return help.empty() ? "" : ": " + help;
}

// The message for a command line that CLI11 refused, with the nearest verb or option for one that does not exist.
std::string WhatIsWrong(const CLI::App& app, const CLI::ParseError& error) {
  const std::vector<CLI::App*> verbs = app.get_subcommands();  // those given
  const CLI::App& place = verbs.empty() ? app : *verbs.front();
  const std::vector<std::string> strays = place.remaining();
  const auto option = std::ranges::find_if(strays, [](const std::string& text) { return text.starts_with("-"); });
  std::vector<std::string> names;
  if (option != strays.end()) {
    for (const CLI::Option* known : place.get_options()) {
      for (const std::string& name : known->get_lnames()) names.push_back("--" + name);
    }
    const std::string word = option->substr(0, option->find('='));
    return "there is no option '" + word + "'" + Near(word, names);
  }
  if (!verbs.empty()) return error.what();
  for (const CLI::App* verb : app.get_subcommands([](const CLI::App*) { return true; }))
    names.push_back(verb->get_name());
  if (strays.empty()) return "a verb is needed: " + Join(names, ", ");
  return "there is no verb '" + strays.front() + "'" + Near(strays.front(), names);
}

}  // namespace

FindingsOutput FindingsOutputOf(const Verb& verb) {
  return std::visit(
      [](const auto& v) {
        if constexpr (requires { v.findings_output; }) return v.findings_output;
        return FindingsOutput();
      },
      verb);
}

CommandLine ParseCommandLine(const std::vector<std::string>& arguments) {
  CLI::App app(kAbout, "moonshard");
  app.require_subcommand(1);
  app.set_version_flag("--version", "moonshard " MOONSHARD_VERSION);
  std::vector<std::string> plan_options;
  FindingsOutputWords findings_output;

  ExplainVerb explain;
  CLI::App* explain_app = app.add_subcommand("explain", "what a plan does to a model, without weights or ranks");
  AddModel(*explain_app, explain.model, plan_options);
  AddAdapter(*explain_app, explain.model);
  AddFindingsOutput(*explain_app, findings_output);
  AddNumber(*explain_app, "--rank", explain.rank, "rank whose local shapes and bytes are printed (default 0)");
  explain_app->add_flag("--json", explain.json, "the versioned JSON form");
  CLI::Option* html =
      explain_app->add_option("--html", explain.html, "write an HTML report to this file; - for stdout");
  explain_app->add_option(
      "--tokens", explain.tokens,
      "B,S: the input has B sequences of S tokens; used for the bytes of collectives and of a step");
  CLI::Option* passes = explain_app->add_flag("--passes", explain.passes,
                                              "print the passes from the plan to the compiled plan (time, result and "
                                              "number of findings of each) in place of the explanation; with "
                                              "--json, in addition to it");
  passes->excludes(html);
  explain_app
      ->add_flag(
          "--memory", explain.memory,
          "print the peak memory of one rank in a training step, by module, and the floating-point operations of the "
          "step; for a reference architecture or a program. Without --tokens, the input is 1,2048 or, for a "
          "program, the longest input of its export")
      ->excludes(html)
      ->excludes(passes);
  AddDType(*explain_app, explain.dtype);

  CheckVerb check;
  bool check_json = false;
  CLI::App* check_app =
      app.add_subcommand("check", "report all findings about a plan; exit code 1 if there are errors");
  AddModel(*check_app, check.model, plan_options);
  AddAdapter(*check_app, check.model);
  AddFindingsOutput(*check_app, findings_output);
  check_app->add_flag("--strict", check.strict, "warnings count as errors");
  check_app->add_flag("--json", check_json, "the same as --format json");

  EvalVerb eval;
  CLI::App* eval_app =
      app.add_subcommand("eval", "run the reference architecture or the program, sharded: logits, loss, gradients");
  AddModel(*eval_app, eval.model, plan_options);
  AddAdapter(*eval_app, eval.model);
  AddFindingsOutput(*eval_app, findings_output);
  eval_app
      ->add_option(
          "--input", eval.input,
          "safetensors or JSON: input_ids [B, T]; labels, attention_mask, position_ids, document_ids (rows of several "
          "documents); for a program with other inputs, each input by its name")
      ->required();
  eval_app
      ->add_option("--output", eval.output,
                   "safetensors file to write: logits and loss, for a program every output that it names, and "
                   "grad.<parameter>")
      ->required();
  eval_app->add_flag("--grads", eval.grads, "run backward too and write every gradient, unsharded");
  eval_app->add_option("--stats", eval.stats,
                       "JSON file to write: rank 0's collectives, each rank's memory, and the seconds of load, forward "
                       "and backward; - for stdout");
  AddNumber(*eval_app, "--micro-batches", eval.micro_batches,
            "number of micro-batches; their gradients are accumulated");
  AddRun(*eval_app, eval.run);

  VerifyVerb verify;
  CLI::App* verify_app = app.add_subcommand("verify",
                                            "run the reference architecture or the program, sharded and unsharded, and "
                                            "name the first module whose output or gradient differs");
  AddModel(*verify_app, verify.model, plan_options);
  AddAdapter(*verify_app, verify.model);
  AddFindingsOutput(*verify_app, findings_output);
  verify_app->add_option("--input", verify.input, "as for eval; generated if not given");
  verify_app->add_option(
      "--tokens", verify.tokens,
      "B,S of the generated input (default 2,13, or for a program with other inputs the sizes of its "
      "export; with --types 2,12*tp)");
  AddNumber(*verify_app, "--tolerance", verify.tolerance,
            "largest difference that passes, relative to the largest value of the tensor (default 2e-4, or "
            "more for a coarser dtype: 12 times its epsilon)");
  CLI::Option* types = verify_app->add_flag("--types", verify.types,
                                            "prove the layouts of every operator, without other ranks or weights");
  verify_app->add_flag("--ops", verify.ops, "compare the results of every operator, not only of modules")
      ->excludes(types);
  AddNumber(*verify_app, "--rank", verify.rank, "with --types: the rank that is checked (default 0)")->needs(types);
  verify_app
      ->add_option("--loss-scale", verify.loss_scale,
                   "with --types: whether the loss is a sum or a mean over the rows of the batch, where the proof does "
                   "not find out")
      ->check(CLI::IsMember({"sum", "mean"}))
      ->needs(types);
  verify_app
      ->add_flag("--json", verify.json,
                 "with --types: print the proof as JSON: whether the proof holds, for which step, the assumptions and "
                 "the findings")
      ->needs(types);
  AddRun(*verify_app, verify.run);

  TrainVerb train;
  CLI::App* train_app = app.add_subcommand(
      "train", "train the reference architecture or the program, sharded; saves checkpoints and resumes from them");
  AddModel(*train_app, train.model, plan_options);
  AddAdapter(*train_app, train.model);
  AddFindingsOutput(*train_app, findings_output);
  AddTrain(*train_app, train);

  ShardVerb shard;
  CLI::App* shard_app = app.add_subcommand("shard",
                                           "shard a checkpoint: one safetensors file per rank, bit for bit; with "
                                           "--program the tensors have the names and shapes that the program has");
  AddModel(*shard_app, shard.model, plan_options);
  AddFindingsOutput(*shard_app, findings_output);
  AddConvert(*shard_app, shard.out, shard.replace, shard.json);

  MergeVerb merge;
  CLI::App* merge_app =
      app.add_subcommand("merge", "the inverse of shard: restores the model directory, byte for byte");
  merge_app
      ->add_option("SHARDED", merge.sharded,
                   "directory that shard wrote, or a step of a training run (its weights); with --adapter, a model "
                   "directory")
      ->required();
  merge_app->add_option(
      "--adapter", merge.adapter,
      "directory with a LoRA adapter in the files of PEFT: OUT is the model directory with the adapter "
      "added to its weights, each rounded once to its dtype");
  AddFindingsOutput(*merge_app, findings_output);
  AddConvert(*merge_app, merge.out, merge.replace, merge.json);

  ImportVerb import;
  CLI::App* import_app = app.add_subcommand("import", "a Hugging Face tp_plan or ep_plan as a plan file, on stdout");
  import_app->add_option("FILE", import.file, "config.json, a Python dict or source, or a file of many plans")
      ->required();
  AddFindingsOutput(*import_app, findings_output);
  import_app->add_option("--name", import.key,
                         "name of the plan in the file: llama, llama/LlamaConfig, LlamaForCausalLM");
  import_app->add_flag("--idiomatic", import.idiomatic,
                       "write a plan to edit, with the styles of this language, instead of a plan with exactly the "
                       "meaning of Hugging Face");
  import_app->add_flag("--expert-parallel", import.experts, "import the ep_plan in place of the tp_plan");
  import_app->add_option("--base", import.base, "path of the base model within the model (default \"model.\")");

  ExportVerb export_verb;
  CLI::App* export_app = app.add_subcommand("export", "the resolved plan in the form of another system, on stdout");
  AddModel(*export_app, export_verb.model, plan_options);
  AddFindingsOutput(*export_app, findings_output);
  export_app->add_option("--form", export_verb.form, "hf: a Hugging Face tp_plan; torch: Python for parallelize_module")
      ->required()
      ->check(CLI::IsMember({"hf", "torch"}));

  CompareVerb compare;
  CLI::App* compare_app = app.add_subcommand("compare",
                                             "compare two safetensors files: for each tensor, the largest absolute "
                                             "difference divided by the largest absolute value of the tensor in "
                                             "EXPECTED");
  compare_app->add_option("ACTUAL", compare.actual, "safetensors file")->required();
  compare_app->add_option("EXPECTED", compare.expected, "safetensors file; each of its tensors must be in ACTUAL")
      ->required();
  AddNumber(*compare_app, "--tolerance", compare.tolerance, "largest relative difference that passes (default 2e-4)");

  ExplainFindingVerb explain_finding;
  CLI::App* explain_finding_app = app.add_subcommand(
      "explain-finding", "what a finding means, with an example and the suggested fix; without a name, a list of all");
  explain_finding_app->add_option("FINDING", explain_finding.finding, "MS0202, or its name: unmatched-rule");
  CLI::Option* finding_json = explain_finding_app->add_flag("--json", explain_finding.json, "as JSON");
  explain_finding_app->add_flag("--markdown", explain_finding.markdown, "as Markdown: one page")
      ->excludes(finding_json);
  AddColor(*explain_finding_app, findings_output);

  ReplVerb repl;
  CLI::App* repl_app = app.add_subcommand("repl", "the plan debugger: Lua and commands, typed or from a script");
  AddModel(*repl_app, repl.model, plan_options, /*required=*/false);
  AddFindingsOutput(*repl_app, findings_output);
  repl_app->add_option("-c,--code", repl.code, "run these lines and end; may be repeated")->allow_extra_args(false);
  repl_app->add_option("-f,--file", repl.file, "run the lines of a file and end; - for standard input");
  repl_app->add_option("--mode", repl.mode, "output format of the answers: table, json, csv or md")
      ->check(CLI::IsMember({"table", "json", "csv", "md"}));
  repl_app->add_flag("--bail", repl.bail, "end a script at the first line that fails");
  repl_app->add_flag("!--no-history", repl.history, "do not read or write the history of typed lines");

  SuggestVerb suggest;
  CLI::App* suggest_app = app.add_subcommand("suggest", "a first plan file for a model that no shipped plan fits");
  AddModelAlone(*suggest_app, suggest.model);
  AddFindingsOutput(*suggest_app, findings_output);
  suggest_app->add_option("-o,--output", suggest.out, "plan file to write; stdout without it");
  suggest_app->add_flag("--replace", suggest.replace, "overwrite an existing plan file");
  CLI::Option* suggest_mesh = suggest_app->add_option("--mesh", suggest.model.mesh,
                                                      "a mesh with cp, as in cp=4,tp=2 or cp=2x2, on which the plan "
                                                      "shards the sequence (context parallelism); without it the "
                                                      "plan is for tp and dp");
  suggest_app
      ->add_option(
          "--context", suggest.context,
          "attention of that mesh: ulysses, which exchanges heads; ring, which passes keys and values on; "
          "ulysses_ring, "
          "for two factors of cp; auto: ulysses_ring for these, else ulysses, or ring where that sends at most half of "
          "the bytes or ulysses is not possible; none (default auto)")
      ->check(CLI::IsMember({"auto", "ulysses", "ring", "ulysses_ring", "none"}))
      ->needs(suggest_mesh);
  suggest_app->add_flag("--sure", suggest.sure,
                        "shard only blocks with one possible reading, as in the plan that may be chosen for a model "
                        "that no shipped plan fits");

  DoctorVerb doctor;
  CLI::App* doctor_app = app.add_subcommand(
      "doctor",
      "versions and devices; started by torchrun, srun or mpirun, or with --mesh: whether and how fast the ranks reach "
      "each other, and what to set if they do not");
  doctor_app->add_option("--mesh", doctor.mesh, "starts the ranks of this mesh on this machine, as in tp=2");
  AddRanks(*doctor_app, doctor.run);
  doctor_app->add_flag("--json", doctor.json, "as JSON");

  const TextVerbs texts(app);

  CommandLine out;
  try {
    std::vector<std::string> reversed(arguments.rbegin(), arguments.rend());
    if (!arguments.empty() && arguments.front() == "help") {  // `help VERB` is `VERB --help`
      reversed.pop_back();
      reversed.insert(reversed.begin(), "--help");
    }
    app.parse(reversed);
  } catch (const CLI::Success& asked) {  // --help and --version
    std::ostringstream text;
    app.exit(asked, text, text);
    return {std::nullopt, text.str(), 0};
  } catch (const CLI::ParseError& wrong) {
    return {std::nullopt,
            "moonshard: " + Visible(WhatIsWrong(app, wrong)) + "\nRun with --help for more information.\n", 2};
  }
  if (const std::optional<std::string> text = texts.Asked()) return {std::nullopt, *text, 0};
  std::string error;
  const auto take = [&](auto verb) {
    if constexpr (requires { verb.model; }) ReadPlanOptions(plan_options, verb.model, error);
    if constexpr (requires { verb.findings_output; }) verb.findings_output = ReadFindingsOutput(findings_output);
    if constexpr (requires { verb.findings_output, verb.model; }) verb.findings_output.subject = SubjectOf(verb.model);
    out.verb = std::move(verb);
  };
  if (explain_app->parsed()) take(explain);
  if (check_json) findings_output.format = "json";
  if (check_app->parsed()) take(check);
  if (explain_finding_app->parsed()) take(explain_finding);
  if (import_app->parsed()) take(import);
  if (export_app->parsed()) take(export_verb);
  if (eval_app->parsed()) take(eval);
  if (verify_app->parsed()) take(verify);
  if (train_app->parsed()) take(train);
  if (shard_app->parsed()) take(shard);
  if (merge_app->parsed()) take(merge);
  if (compare_app->parsed()) take(compare);
  if (repl_app->parsed()) take(repl);
  if (suggest_app->parsed()) take(suggest);
  if (doctor_app->parsed()) take(doctor);
  if (!error.empty()) return {std::nullopt, Visible(error) + "\n", 2};
  return out;
}

}  // namespace moonshard
