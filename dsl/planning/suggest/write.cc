// A draft as Lua. The body is written first, because only it shows which modules of the stdlib, numbers and helper
// styles the plan uses; the head then declares exactly these.
// A rule matches a layer by "*" only if every layer of the stack that has such modules is meant, and if all children of
// the stack are layers. Otherwise it lists the numbers, because a "*" would also match layers of another kind. A block
// with the same reason as the one before it is written without repeating the comment.
#include "dsl/planning/suggest/write.h"

#include <algorithm>
#include <map>

#include "dsl/planning/suggest/pattern_text.h"
#include "dsl/planning/suggest/sequence.h"
#include "dsl/planning/suggest/words.h"
#include "engine/core/base/quoted.h"
#include "engine/core/base/text.h"
#include "engine/core/base/visible.h"

namespace moonshard {
namespace {

constexpr size_t kCommentWidth = 112;
constexpr size_t kWidestList = 100;  // a longer one has a line for each number
constexpr size_t kLineWidth = 120;

std::vector<std::string> Wrapped(const std::string& text, size_t width) {
  std::vector<std::string> lines = {""};
  for (const std::string& word : Split(Visible(text), ' ')) {
    if (!lines.back().empty() && lines.back().size() + word.size() + 1 > width) lines.emplace_back();
    lines.back() += (lines.back().empty() ? "" : " ") + word;
  }
  return lines;
}

std::string Called(const std::string& path) { return path.empty() ? "the model itself" : path; }

class Writer {
 public:
  explicit Writer(const Draft& draft) : draft_(draft) {}

  WrittenPlan Write() {
    sequence_ = draft_.sequence;
    for (const Block& block : draft_.ends.first) AddBlock(block, nullptr, {});
    for (const ReadStack& read : draft_.stacks) {
      sequence_ = draft_.sequence || read.sequence;
      if (read.sequence) AddEndsOf(read);
      gathered_.clear();
      for (const ReadStack::Gathered& gathered : read.gathered) gathered_.insert(gathered.block);
      for (const ReadStack::Row& row : read.rows) AddBlock(row.block, read.stack, row.layers);
    }
    sequence_ = draft_.sequence;
    gathered_.clear();
    for (const Block& block : draft_.ends.last) AddBlock(block, nullptr, {});
    AddSections();
    const std::string head = Head();
    for (BlockLines& lines : blocks_) {
      lines.first += LinesOf(head);
      lines.last += LinesOf(head);
    }
    return {head + body_ + "}\n", std::move(blocks_)};
  }

 private:
  std::string Head() const {
    std::string out =
        "-- A first plan for " + Visible(draft_.model) + ", from names, shapes and config.json (moonshard suggest).\n";
    out += draft_.only_sure
               ? "-- \"sure\": all three agree. A block with another possible reading is replicated, or \"by rows\".\n"
               : "-- \"sure\": all three agree. \"guess\": another reading is possible, so compare results "
                 "with the unsharded model.\n";
    if (HasPart(Part::kRows)) {
      out +=
          "-- \"by rows\": linear layers whose use is unknown are sharded along the rows of the weight; "
          "their outputs are gathered.\n";
    }
    if (HasPart(Part::kTable))
      out += "-- \"by columns\": the features of a table are sharded, and its output gathered.\n";
    if (HasPart(Part::kChannels))
      out += "-- \"by channels\": the output channels of a convolution are sharded, and its output gathered.\n";
    if (!draft_.no_sequence.empty()) {
      for (const std::string& line : Wrapped("No sequence parallelism: " + draft_.no_sequence, kCommentWidth)) {
        out += "-- " + line + "\n";
      }
    }
    const std::string context = HasContext()                ? "Context parallelism: " + draft_.context_why
                                : draft_.no_context.empty() ? ""
                                                            : "No context parallelism: " + draft_.no_context;
    if (!context.empty()) {
      for (const std::string& line : Wrapped(context, kCommentWidth)) out += "-- " + line + "\n";
    }
    if (uses_transformer_ || HasContext()) out += "local transformer <const> = require \"transformer\"\n";
    if (uses_experts_) out += "local experts <const> = require \"experts\"\n";
    std::vector<std::string> options;
    if (HasSequence()) options.emplace_back("sequence_parallel = false");
    if (draft_.ends.has_logits) options.emplace_back("loss_parallel = false");
    if (HasContext()) options.push_back("context = " + Quoted(draft_.context));
    if (!options.empty()) out += "local opt <const> = options { " + Join(options, ", ") + " }\n";
    if (HasContext()) {
      out += "local stream <const> = transformer.stream { sequence_parallel = opt.sequence_parallel, loss_parallel = " +
             std::string(draft_.ends.has_logits ? "opt.loss_parallel" : "false") +
             ",\n                                            stable = false, context = opt.context }\n"
             "local residual <const> = stream.residual  -- the hidden states between blocks\n";
    } else if (HasSequence()) {
      out +=
          "local residual <const> = opt.sequence_parallel and shard(1) or replicate  -- the hidden states between "
          "blocks\n";
    }
    if (draft_.ends.has_logits && !HasContext())
      out += "local logits <const> = opt.loss_parallel and shard(-1) or replicate\n";
    if (uses_stream_ && !HasContext())
      out += std::string("local stream <const> = { residual = ") + (HasSequence() ? "residual, " : "replicate, ") +
             StreamRest();
    if (uses_plain_) out += "local plain <const> = { residual = replicate, " + StreamRest();
    if (uses_text_) out += "local text <const> = config." + draft_.numbers.section + "\n";
    if (uses_heads_) out += "local n_heads <const> = " + draft_.numbers.heads.lua + "\n";
    if (uses_kv_heads_) out += "local n_kv_heads <const> = " + draft_.numbers.kv_heads.lua + "\n";
    if (uses_gathered_) {
      out += "\n-- A block that gets all tokens, since its modules are not understood" +
             std::string(HasPart(Part::kPerChannel) ? ", or mix tokens.\n" : ".\n") +
             "local gathered <const> = style {\n"
             "  name = \"gathered\",\n"
             "  inputs = { { residual, replicate } },\n"
             "  outputs = { { replicate, residual } },\n"
             "}\n";
    }
    if (uses_turned_up_) out += TurnedUp();
    if (uses_turned_down_) out += TurnedDown();
    return out + "\nreturn plan {\n  api = 1,\n";
  }

  bool HasPart(Part part) const {
    const auto has = [part](const Block& block) {
      return std::ranges::any_of(block.decisions, [part](const Decision& d) { return d.part == part; });
    };
    return std::ranges::any_of(draft_.ends.first, has) || std::ranges::any_of(draft_.ends.last, has) ||
           std::ranges::any_of(draft_.stacks, [&](const ReadStack& read) {
             return std::ranges::any_of(read.rows, has, &ReadStack::Row::block);
           });
  }

  std::string StreamRest() const {
    return std::string("logits = ") + (draft_.ends.has_logits ? "logits" : "replicate") + ", stable = false }\n";
  }

  static std::string TurnedUp() {
    return "\n-- Linear layers whose weight is stored as [in, out]: output features are sharded.\n"
           "local function turned_colwise(layout, input, output)\n"
           "  return style {\n"
           "    name = \"turned_colwise\",\n"
           "    params = { weight = layout(1), bias = layout(0) },\n"
           "    inputs = { { input, shared } },\n"
           "    outputs = { { layout(-1), output or layout(-1) } },\n"
           "  }\n"
           "end\n";
  }

  static std::string TurnedDown() {
    return "\n-- Linear layers whose weight is stored as [in, out]: input features are sharded.\n"
           "local function turned_rowwise(output)\n"
           "  return style {\n"
           "    name = \"turned_rowwise\",\n"
           "    params = { weight = shard(0) },\n"
           "    after = { \"bias\" },\n"
           "    inputs = { { shard(-1), shard(-1) } },\n"
           "    outputs = { { partial, output } },\n"
           "  }\n"
           "end\n";
  }

  // Whether the plan has the option, and whether the hidden states at the blocks that are written now are its shards.
  bool HasSequence() const { return OffersSequence(draft_); }
  bool HasContext() const { return !draft_.context.empty(); }
  std::string Residual() const { return sequence_ ? "residual" : "replicate"; }

  static int LinesOf(const std::string& text) { return static_cast<int>(std::ranges::count(text, '\n')); }

  static std::string HowLeft(const Block& block) {
    std::vector<std::string> how;
    const auto add = [&](const char* text, auto&& of) {
      if (std::ranges::any_of(block.decisions, of, &Decision::part)) how.emplace_back(text);
    };
    add("replicated", [](Part part) { return !IsGathered(part); });
    add("by rows", [](Part part) { return part == Part::kRows; });
    add("by columns", [](Part part) { return part == Part::kTable || part == Part::kFeatureHead; });
    add("by channels", [](Part part) { return part == Part::kChannels; });
    return (how.empty() ? "replicated" : Join(how, " or ")) + ": ";
  }

  void AddBlock(const Block& block, const Stack* stack, const std::set<int64_t>& layers) {
    const int before = LinesOf(body_);
    const std::string how = block.unknown ? HowLeft(block) : block.sure ? "sure: " : "guess: ";
    if (block.why != said_ || block.why.empty()) {
      for (const std::string& line : Wrapped(how + block.why, kCommentWidth)) body_ += "  -- " + line + "\n";
    }
    said_ = block.why;
    // The decoder's heads must fit the mesh. A tower, or another stack with a section of its own in the config, is
    // replicated where its heads do not.
    const bool own = std::ranges::count(block.heads.lua, '.') > 1;  // "config.perceiver_config.resampler_n_heads"
    const bool optional =
        block.heads.known() && !block.unknown && stack != nullptr && (own || IsOtherSense(stack->path));
    if (optional) {
      const std::string kv = Text(block.kv_heads);
      const bool grouped = own && block.kv_heads.known() && block.kv_heads != block.heads;
      const std::string fits = Text(block.heads) + " % mesh.tp == 0 and ";
      if (grouped) {
        AddLine(fits + "(" + kv + " % mesh.tp == 0");
        AddLine("  or mesh.tp % " + kv + " == 0) and {");
      } else {
        AddLine(fits + "{");
      }
      indent_ = "    ";
    }
    if (block.heads.known() && !optional) {
      uses_transformer_ = true;
      std::string line =
          "transformer.heads_fit(" + Quoted(PathOf(stack, layers, {block.heads_of})) + ", " + Text(block.heads);
      const bool grouped = block.kv_heads.known() && block.kv_heads != block.heads;
      if (grouped || HasContext()) line += ", " + (grouped ? Text(block.kv_heads) : "nil");
      AddLine(line + (HasContext() ? ", stream)," : "),"));
    }
    block_ = &block;
    const bool sequence = sequence_;
    sequence_ &= !MixesTokens(block);  // its input is gathered at the module around it
    for (const Decision& decision : block.decisions) AddDecision(decision, stack, layers);
    sequence_ = sequence;
    if (optional) {
      indent_ = "  ";
      AddLine("},");
    }
    blocks_.push_back({&block, stack, before + 1, LinesOf(body_)});
  }

  // Where the shards of the sequence begin and end in a stack, and the blocks in it that get all tokens.
  void AddEndsOf(const ReadStack& read) {
    std::set<int64_t> layers;
    for (const LayerKind& kind : read.stack->kinds) layers.insert(kind.layers.begin(), kind.layers.end());
    const std::string path = Literally(read.stack->path);
    body_ += "  -- Within these layers, the hidden states are sharded along the sequence.\n";
    if (*layers.begin() == 0 && read.stack->only_layers && !path.empty()) {
      uses_transformer_ = true;
      AddLine("transformer.stack(" + Quoted(path) + ", { residual = residual }),");
    } else {
      const std::string before = path.empty() ? "" : path + ".";
      const auto layer = [&](int64_t number) {
        return "residual ~= replicate and at(" + Quoted(before + std::to_string(number)) + ", ";
      };
      if (layers.size() > 1) {
        AddLine(layer(*layers.begin()) + "prepare_input { { replicate, residual } }),");
        AddLine(layer(*layers.rbegin()) + "prepare_output { { residual, replicate } }),");
      } else {
        AddLine(layer(*layers.begin()) +
                "style { name = \"stack\", inputs = { { replicate, residual } }, outputs = { { residual, replicate } } "
                "}),");
      }
    }
    for (const ReadStack::Gathered& gathered : read.gathered) {
      uses_gathered_ = true;
      AddLine("at(" + Quoted(PathOf(read.stack, gathered.layers, {gathered.block})) + ", gathered),");
    }
  }

  void AddDecision(const Decision& decision, const Stack* stack, const std::set<int64_t>& layers) {
    if (decision.part == Part::kExperts) {
      uses_experts_ = true;
      const bool stream = sequence_ || !HasSequence();
      (stream ? uses_stream_ : uses_plain_) = true;
      AddLine("experts.block(" + Quoted(PathOf(stack, layers, decision.names)) +
              (stream ? ", stream, { " : ", plain, { ") + decision.extra + " }),");
      uses_text_ |= decision.extra.find("text.") != std::string::npos;
      return;
    }
    // Modules of one directory in braces.
    std::vector<std::string> folders;
    std::map<std::string, std::vector<std::string>> names;
    for (const std::string& name : decision.names) {
      if (gathered_.contains(name)) continue;  // it has a rule
      // The layer itself has no siblings within it.
      std::string folder(name.empty() ? "." : ParentOf(name));
      if (!names.contains(folder)) folders.push_back(folder);
      names[folder].push_back(name);
    }
    const std::string style = StyleOf(decision);
    for (const std::string& folder : folders) {
      for (const std::vector<std::string>& some : ByLength(names[folder])) {
        AddLine("at(" + Quoted(PathOf(stack, layers, some)) + ", " + style + "),");
      }
    }
  }

  // So many names that a pattern of them is read (kMostPatternBytes), with room for the path around them.
  static std::vector<std::vector<std::string>> ByLength(const std::vector<std::string>& names) {
    constexpr size_t kMostBytes = 1024;
    std::vector<std::vector<std::string>> out;
    size_t bytes = 0;
    for (const std::string& name : names) {
      if (out.empty() || bytes + name.size() > kMostBytes) {
        out.emplace_back();
        bytes = 0;
      }
      out.back().push_back(name);
      bytes += name.size() + 1;
    }
    return out;
  }

  // Modules of one directory as a pattern. `*` matches the layer where no other layer has such modules.
  std::string PathOf(const Stack* stack, const std::set<int64_t>& layers, const std::vector<std::string>& names) const {
    const std::string folder(ParentOf(names.front()));
    std::vector<std::string> last;
    for (const std::string& name : names)
      last.push_back(Literally(folder.empty() ? name : name.substr(folder.size() + 1)));
    std::string inside = (folder.empty() ? "" : Literally(folder) + ".") + Braces(last);
    if (stack == nullptr) return inside;
    const bool all = std::ranges::all_of(stack->layers_of, [&](const auto& entry) {
      const bool meant = std::ranges::any_of(
          names, [&](const std::string& name) { return IsUnder(Starred(entry.first), Starred(name)); });
      return !meant || std::ranges::includes(layers, entry.second);
    });
    return (stack->path.empty() ? "" : Literally(stack->path) + ".") +
           (all && stack->only_layers ? "*" : Numbers(layers)) + (inside.empty() ? "" : "." + inside);
  }

  std::string Text(const Number& number) {
    uses_text_ |= number.lua.starts_with("text.");
    if (number == draft_.numbers.heads) {
      uses_heads_ = true;
      return "n_heads";
    }
    if (number == draft_.numbers.kv_heads) {
      uses_kv_heads_ = true;
      return "n_kv_heads";
    }
    return number.lua;
  }

  std::string List(const std::vector<Number>& numbers) {
    std::vector<std::string> texts;
    for (const Number& number : numbers) texts.push_back(Text(number));
    const std::string line = "{ " + Join(texts, ", ") + " }";
    return line.size() <= kWidestList ? line : "{\n         " + Join(texts, ",\n         ") + ",\n       }";
  }

  std::string StyleOf(const Decision& decision) {
    const std::string in = sequence_ && !decision.from_all ? "input = residual" : "";
    const auto with = [](const std::string& name, const std::vector<std::string>& keys) {
      std::vector<std::string> said;
      for (const std::string& key : keys) {
        if (!key.empty()) said.push_back(key);
      }
      return said.empty() ? name + " {}" : name + " { " + Join(said, ", ") + " }";
    };
    const std::string heads = decision.heads.known() ? "heads = " + Text(decision.heads) : "";
    if (std::string style = HasContext() ? StyleInContext(decision, heads, with) : ""; !style.empty()) {
      uses_transformer_ = true;
      return style;
    }
    switch (decision.part) {
      case Part::kEmbedding: return with("vocab_rowwise", {sequence_ ? "output = residual" : ""});
      case Part::kHead: return with("colwise", {in, draft_.ends.has_logits ? "output = logits" : "output = replicate"});
      case Part::kNorm: return sequence_ ? "norm_on(residual)" : "replicated()";
      case Part::kColwise: return decision.turned ? Turned(decision) : with("colwise", {in, heads});
      case Part::kRowwise: return Rowwise(decision);
      case Part::kFusedColwise: return decision.turned ? Turned(decision) : Fused(decision, in, with);
      case Part::kHeadNorm: uses_transformer_ = true; return "transformer.head_norm()";
      case Part::kToLatent: return with("replicated", {in, "output = shared"});
      case Part::kSummed: return R"(style { name = "summed", params = { weight = shared } })";
      case Part::kPerHead: return "shard(0, { " + heads + " })";
      case Part::kPerChannel:
      case Part::kPerToken: return "shard(0)";
      case Part::kHeadTable:
        return "style { name = \"head_table\", params = { weight = shard(1) }, outputs = { { shard(-1), shard(-1) } "
               "}, " +
               heads + " }";
      case Part::kFullParameter: return "replicate";
      case Part::kRows:
        uses_turned_up_ |= decision.turned;
        return decision.turned ? "turned_colwise(shard, replicate, replicate)" : "colwise { output = replicate }";
      case Part::kTable: uses_transformer_ = true; return "transformer.table(" + decision.extra + ")";
      case Part::kFeatureHead: return "rowwise { input = replicate }";
      case Part::kChannels:
        uses_transformer_ = true;
        return "transformer.channels(" + std::to_string(decision.kernel_dims) + ")";
      case Part::kFromLatent: return with("colwise", {"input = shared", heads});
      default: return "replicated()";
    }
  }

  // The styles of which a rank of cp has its own tokens, and of attention perhaps some of the heads; "": another one,
  // which is the same with all tokens.
  template <class With>
  std::string StyleInContext(const Decision& decision, const std::string& heads, const With& with) {
    const std::string attention = block_->heads.known() ? "attention = true" : "";
    switch (decision.part) {
      case Part::kEmbedding: return "transformer.embedding(stream)";
      case Part::kHead:
        return std::string("transformer.column(stream, { input = residual, output = ") +
               (draft_.ends.has_logits ? "stream.logits" : "replicate") + " })";
      case Part::kColwise: return with("transformer.column(stream,", {"input = residual", heads, attention}) + ")";
      case Part::kFusedColwise:
        return with(
            "transformer.fused_colwise",
            {"input = residual", "sizes = " + List(decision.sizes),
             decision.part_heads.empty() ? "" : "heads = " + List(decision.part_heads), "stream = stream", attention});
      case Part::kRowwise: {
        if (attention.empty()) return "transformer.block_end(stream)";
        const bool grouped = block_->kv_heads.known() && block_->kv_heads != block_->heads;
        return "transformer.block_end(stream, shard(-1), " + Text(block_->heads) + ", " +
               (grouped ? Text(block_->kv_heads) : "nil") +
               (draft_.numbers.section.empty() ? ", transformer.window())" : ")");
      }
      default: return "";
    }
  }

  std::string Rowwise(const Decision& decision) {
    uses_turned_down_ |= decision.turned;
    if (decision.turned) return "turned_rowwise(" + Residual() + ")";
    return sequence_ ? "rowwise { output = residual }" : "rowwise {}";
  }

  template <class With>
  std::string Fused(const Decision& decision, const std::string& in, const With& with) {
    uses_transformer_ = true;
    return with("transformer.fused_colwise",
                {in, "sizes = " + List(decision.sizes),
                 decision.part_heads.empty() ? "" : "heads = " + List(decision.part_heads)});
  }

  std::string Turned(const Decision& decision) {
    uses_turned_up_ = true;
    const std::string input = ", " + (decision.from_all ? "replicate" : Residual()) + ")";
    if (decision.part == Part::kColwise) {
      if (!decision.heads.known()) return "turned_colwise(shard" + input;
      return "turned_colwise(function(d) return shard(d, { heads = " + Text(decision.heads) + " }) end" + input;
    }
    const std::string heads = decision.part_heads.empty() ? "" : ", { heads = " + List(decision.part_heads) + " }";
    return "turned_colwise(function(d) return packed(d, " + List(decision.sizes) + heads + ") end" + input;
  }

  void AddSections() {
    std::vector<std::string> wraps;
    for (const ReadStack& read : draft_.stacks) {
      if (read.units.empty()) continue;
      size_t layers = 0;
      for (const LayerKind& kind : read.stack->kinds) layers += kind.layers.size();
      const bool all = read.stack->only_layers && read.units.size() == layers;
      wraps.push_back(Quoted((read.stack->path.empty() ? "" : Literally(read.stack->path) + ".") +
                             (all ? "*" : Numbers(read.units))));
    }
    if (!wraps.empty()) {
      body_ += "  -- On a mesh with dp: the parameters of a layer are gathered while it is used.\n";
      AddLine("fsdp { wrap = " + (wraps.size() == 1 ? wraps.front() : "{ " + Join(wraps, ", ") + " }") + " },");
    }
    if (draft_.rest.empty()) return;
    const std::string what = Count(draft_.rest.size(), "module");
    for (const std::string& line : Wrapped(
             "replicated: " + what + " without a rule; the first is " + Called(draft_.rest.front()), kCommentWidth)) {
      body_ += "  -- " + line + "\n";
    }
    AddLine("default(replicated()),");
  }

  void AddLine(const std::string& line) {
    const size_t comma = line.find("\", ");
    if (line.size() + indent_.size() <= kLineWidth || comma == std::string::npos) {
      body_ += indent_ + line + "\n";
      return;
    }
    body_ += indent_ + line.substr(0, comma + 2) + "\n";
    const std::string further = indent_ + "   ";
    std::string rest = line.substr(comma + 3);
    while (rest.size() + further.size() > kLineWidth) {
      const size_t cut = rest.rfind("\", \"", kLineWidth - further.size() - 2);  // in a list of texts
      if (cut == std::string::npos) break;
      body_ += further + rest.substr(0, cut + 2) + "\n";
      rest = rest.substr(cut + 3);
    }
    body_ += further + rest + "\n";
  }

  const Draft& draft_;
  std::string body_;
  std::string indent_ = "  ";
  std::vector<BlockLines> blocks_;
  std::string said_;
  const Block* block_ = nullptr;  // that is written now
  bool sequence_ = false;
  std::set<std::string> gathered_;  // of the stack that is written now
  bool uses_stream_ = false;
  bool uses_plain_ = false;
  bool uses_gathered_ = false;
  bool uses_transformer_ = false;
  bool uses_experts_ = false;
  bool uses_text_ = false;
  bool uses_heads_ = false;
  bool uses_kv_heads_ = false;
  bool uses_turned_up_ = false;
  bool uses_turned_down_ = false;
};

}  // namespace

WrittenPlan WritePlan(const Draft& draft) { return Writer(draft).Write(); }

}  // namespace moonshard
