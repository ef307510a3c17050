// The report as a reader meets it, in a headless Chromium: what is where, in which colours, what a key does. Skipped,
// and said so, where there is no Chromium. MOONSHARD_PICTURES=FOLDER keeps pictures of the pages.
#include <catch2/catch.hpp>
#include <set>

#include "dsl/planning/resolve_model/resolve_model.h"
#include "engine/io/safetensors/tree.h"
#include "tests/engine/plan/report/pages.h"
#include "tests/support/paths.h"

namespace moonshard::test {
namespace {

const std::string kSource = SourcePath();

// 331 rows of vocabulary in 4 uneven shards, layers in units over dp_shard, one finding.
CompiledPlan SmallPlan() {
  ModelOptions options;
  options.model = kSource + "/tests/parity/llama_vocab331";
  options.mesh = "tp=4,dp_shard=2,dp_replicate=2";
  CompiledPlan plan = ResolveFromHeaders(options).ValueOrThrow();
  plan.findings = {MakeDiagnostic(Finding::kUnusedAxis, "nothing in the plan uses mesh axis 'x'")};
  return plan;
}

// The lowest contrast of any text that can be seen against what is behind it, and that text.
constexpr const char* kContrast = R"js((() => {
  const parse = (text) => (text.match(/[\d.]+/g) || []).map(Number);
  const linear = (c) => (c /= 255) <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
  const light = ([r, g, b]) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
  const ground = (element) => {
    for (let e = element; e; e = e.parentElement) {
      const color = parse(getComputedStyle(e).backgroundColor);
      if (color.length === 3 || color[3] === 1) return color;
    }
    return [255, 255, 255];
  };
  let worst = { ratio: 99, text: "" };
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    const text = walker.currentNode.textContent.trim();
    if (text === "" || !element.checkVisibility() || element.closest("script, noscript, .skip, :disabled")) continue;
    const style = getComputedStyle(element);
    let back = ground(element);
    let front = parse(style.color);
    if (element.closest("svg")) {
      front = parse(style.fill);
      const before = element.previousElementSibling;
      if (element.classList.contains("label") && before) {
        const piece = before.classList.contains("frame") ? before.previousElementSibling : before;
        back = parse(getComputedStyle(piece).fill);
      }
    }
    const [a, b] = [light(front), light(back)].sort((x, y) => y - x);
    const ratio = (a + 0.05) / (b + 0.05);
    if (ratio < worst.ratio) worst = { ratio, text: text + " " + element.className };
  }
  return worst;
})())js";

double LightnessOfGround(Browser& browser) {
  return static_cast<double>(
      browser.Evaluate("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)[0]").AsInt());
}

void CheckContrast(Browser& browser) {
  const JsonValue worst = browser.Evaluate(kContrast);
  INFO(WriteJson(worst, 0));
  CHECK(worst.Find("ratio")->AsDouble() >= 4.5);
  CHECK(worst.Find("ratio")->AsDouble() < 99);
}

// Selects the module with this path and answers its first large drawing's shards: [{x, y, w, h, color, mine}].
JsonValue ShardsOf(Browser& browser, const std::string& path) {
  browser.Evaluate(
      "(() => { const s = document.getElementById('search'); s.value = '" + path +
      "'; s.dispatchEvent(new Event('input')); [...document.querySelectorAll('[role=treeitem]')].at(-1).click(); })()");
  return browser.Evaluate(
      "[...document.querySelector('#details svg').querySelectorAll('.shard')].map((e) => { const b = "
      "e.getBoundingClientRect(); return { x: b.x, y: b.y, w: b.width, h: b.height, color: "
      "getComputedStyle(e).fill, mine: e.classList.contains('mine') }; })");
}

double Number(const JsonValue& shard, const char* key) { return shard.Find(key)->AsDouble(); }

TEST_CASE("light, dark and paper: each readable, and the reader's choice goes before the system's") {
  Pages pages;
  if (!pages) return;
  Browser& browser = pages.Open(SmallPlan());
  CHECK(LightnessOfGround(browser) > 200);
  CheckContrast(browser);
  KeepPicture(browser, "light_1280");
  browser.Show({.dark = true});
  CHECK(LightnessOfGround(browser) < 60);
  CheckContrast(browser);
  KeepPicture(browser, "dark_1280");
  browser.Evaluate("document.getElementById('theme').click()");  // auto to light
  CHECK(LightnessOfGround(browser) > 200);
  CheckContrast(browser);
  browser.Show({.dark = false});
  browser.Evaluate("document.getElementById('theme').click()");  // to dark
  CHECK(LightnessOfGround(browser) < 60);
  CheckContrast(browser);
  browser.Show({.dark = true, .print = true});
  CHECK(LightnessOfGround(browser) == 255);
  CheckContrast(browser);
  for (const char* gone : {".controls", "nav", ".tools", ".keys"}) {
    INFO(gone);
    CHECK_FALSE(browser.Evaluate("document.querySelector('" + std::string(gone) + "').checkVisibility()").AsBool());
  }
  CHECK(browser.Evaluate("document.querySelector('.tree .drawing').checkVisibility()").AsBool());
  KeepPicture(browser, "print");
}

TEST_CASE("on paper every column of a table is on the page") {
  Pages pages;
  if (!pages) return;
  constexpr int kPaper = 718;  // A4 in CSS's pixels, less Chromium's margins
  Browser& browser = pages.Open(SmallPlan(), {.width = kPaper, .print = true});
  CHECK(browser.Evaluate("document.documentElement.scrollWidth").AsInt() <= kPaper);
  for (const char* cells : {"#calls th", "#calls td", "#calls .call-bytes", "#rule-rows td"}) {
    INFO(cells);
    const JsonValue right = browser.Evaluate("Math.max(...[...document.querySelectorAll('" + std::string(cells) +
                                             "')].map((e) => e.getBoundingClientRect().right))");
    CHECK(right.AsDouble() <= kPaper);
  }
  CHECK(browser
            .Evaluate("[...document.querySelectorAll('.scroll')].every((e) => getComputedStyle(e).overflowX === "
                      "'visible' && e.scrollWidth <= e.clientWidth)")
            .AsBool());
  KeepPicture(browser, "print_718");
}

FailedPlan Failed(const std::string& plan) {
  ModelOptions options;
  options.model = kSource + "/tests/parity/llama_gqa";
  options.mesh = "tp=2";
  options.plan = plan;
  const ModelFolder folder = OpenModelFolder(options, true).ValueOrThrow();
  FailedPlan failed{.name = plan, .mesh = folder.mesh};
  failed.tree = std::make_shared<const ModuleTree>(TreeFromCheckpoint(folder.checkpoint, folder.config));
  const Resolution resolved = ResolveModel(options, folder.config, folder.mesh, failed.tree);
  failed.plan = resolved.plan;
  failed.findings = resolved.diagnostics;
  return failed;
}

TEST_CASE("the page of a plan with errors: findings first, and nothing that is not known") {
  Pages pages;
  if (!pages) return;
  const ScratchFolder scratch;
  const FailedPlan failed = Failed(scratch.Write(
      "two.lua", "return plan { at('model.layers.*.mlp.up_proj', colwise {}), at('**.up_proj', rowwise {}) }"));
  REQUIRE(failed.plan != nullptr);
  Browser& browser = pages.OpenPage(ReportHtml(failed, {.model = "llama"}));
  CHECK(browser.errors().empty());
  const auto seen = [&](const std::string& selector) {
    return browser.Evaluate("document.querySelector('" + selector + "').checkVisibility()").AsBool();
  };
  CHECK(browser.Evaluate("document.querySelectorAll('.finding.error').length").AsInt() > 0);
  CHECK(seen("#failed"));
  CHECK(seen("#tree .row"));
  CHECK(browser.Evaluate("document.querySelectorAll('#rule-rows tbody tr').length").AsInt() == 2);
  for (const char* gone : {"#memory", "#collectives", "nav a[href=\"#memory\"]", "#rank"}) {
    INFO(gone);
    CHECK_FALSE(seen(gone));
  }
  CHECK(browser.Evaluate("document.querySelector('#tree .layout') === null").AsBool());
  CHECK(browser
            .Evaluate("document.getElementById('findings').getBoundingClientRect().bottom < "
                      "document.getElementById('model').getBoundingClientRect().top")
            .AsBool());
  CheckContrast(browser);
  KeepPicture(browser, "failed");
  // A text that is no plan at all.
  Browser& nothing = pages.OpenPage(ReportHtml(Failed(scratch.Write("no.lua", "return 1 +\n")), {.model = "llama"}));
  CHECK(nothing.errors().empty());
  CHECK(nothing.Evaluate("document.querySelectorAll('.finding.error').length").AsInt() == 1);
  CHECK_FALSE(nothing.Evaluate("document.getElementById('rules').checkVisibility()").AsBool());
  FailedPlan modelless{.name = "mine.lua"};
  modelless.findings = {MakeDiagnostic(Finding::kFileNotFound, "there is no directory 'x'")};
  Browser& bare = pages.OpenPage(ReportHtml(modelless, {.model = "x"}));
  CHECK(bare.errors().empty());
  CHECK_FALSE(bare.Evaluate("document.getElementById('model').checkVisibility()").AsBool());
}

TEST_CASE("the page needs nothing else, and shows a model's name as it is") {
  Pages pages;
  if (!pages) return;
  Browser& browser = pages.Open(SmallPlan());
  CHECK(browser.requests().size() == 1);  // itself
  CHECK(browser.errors().empty());
  CHECK(browser.Evaluate("document.querySelectorAll('model').length").AsInt() == 0);
  CHECK(browser.Evaluate("document.querySelector('h1').textContent").AsString() == "a <model> & \"quotes\"");
  CHECK(browser.Evaluate("fetch('https://example.com').then(() => 'sent', () => 'refused')").AsString() == "refused");
}

TEST_CASE("the tree by keyboard") {
  Pages pages;
  if (!pages) return;
  Browser& browser = pages.Open(SmallPlan());
  CHECK(browser.Evaluate("document.querySelectorAll('#tree [tabindex=\"0\"]').length").AsInt() == 1);
  browser.Evaluate("document.querySelector('#tree [tabindex=\"0\"]').focus()");
  browser.Key("Home");
  CHECK(Focused(browser) == "lm_head");
  browser.Key("ArrowDown");
  CHECK(Focused(browser) == "model");
  // What has the focus has a frame that can be seen, and is in sight.
  CHECK(browser.Evaluate("getComputedStyle(document.activeElement).outlineStyle").AsString() == "solid");
  CHECK(browser.Evaluate("parseFloat(getComputedStyle(document.activeElement).outlineWidth)").AsInt() >= 2);
  const int64_t all = RowCount(browser);
  browser.Key("ArrowLeft");  // folds
  CHECK(RowCount(browser) == 2);
  CHECK(browser.Evaluate("document.activeElement.getAttribute('aria-expanded')").AsString() == "false");
  browser.Key("ArrowRight");  // unfolds, with all that was unfolded in it
  CHECK(RowCount(browser) == all);
  CHECK(browser.Evaluate("document.activeElement.getAttribute('aria-expanded')").AsString() == "true");
  browser.Key("ArrowRight");  // to the first in it
  CHECK(Focused(browser) == "embed_tokens");
  CHECK(browser.Evaluate("document.activeElement.getAttribute('aria-level')").AsString() == "2");
  CHECK(browser.Evaluate("document.querySelector('#details h3').textContent").AsString() == "model.embed_tokens");
  browser.Key("ArrowLeft");  // back to what holds it
  CHECK(Focused(browser) == "model");
  browser.Key("End");
  CHECK(Focused(browser) == "norm");
  CHECK(browser
            .Evaluate("(() => { const b = document.activeElement.getBoundingClientRect(); return b.top >= 0 && "
                      "b.bottom <= innerHeight; })()")
            .AsBool());
  CHECK(browser.errors().empty());
}

TEST_CASE("search and filter") {
  Pages pages;
  if (!pages) return;
  Browser& browser = pages.Open(SmallPlan());
  const int64_t all = RowCount(browser);
  browser.Key("/");
  CHECK(browser.Evaluate("document.activeElement.id").AsString() == "search");
  browser.Type("layers.1.mlp.down");  // one of those that are folded
  CHECK(RowCount(browser) == 5);      // model, layers, {0,1}, mlp, down_proj
  browser.Key("Enter");
  CHECK(browser.Evaluate("document.activeElement.getAttribute('role')").AsString() == "treeitem");
  browser.Key("Escape");
  CHECK(RowCount(browser) == all);
  CHECK(browser.Evaluate("document.getElementById('search').value").AsString().empty());
  const auto filter = [&](const std::string& value) {
    browser.Evaluate("(() => { const f = document.getElementById('filter'); f.value = '" + value +
                     "'; f.dispatchEvent(new Event('change')); })()");
    return browser
        .Evaluate(
            "[...document.querySelectorAll('[role=treeitem]:not([aria-expanded]) .label')].map((e) => "
            "e.textContent).join()")
        .AsString();
  };
  CHECK(filter("unclaimed").empty());
  CHECK(filter("redistributions") == "lm_head,embed_tokens,down_proj,gate_proj,up_proj,k_proj,o_proj,q_proj,v_proj");
  CHECK(filter("all").find("norm") != std::string::npos);
  // A rule's modules.
  browser.Evaluate("document.querySelectorAll('#rule-rows button')[8].click()");
  CHECK(filter("all") == "down_proj");
}

TEST_CASE("shards are drawn as large as they are, where they are") {
  Pages pages;
  if (!pages) return;
  Browser& browser = pages.Open(SmallPlan());
  // Rows of 331 over tp 4 and then dp_shard 2: 83, 83, 83, 82, each in two.
  const JsonValue rows = ShardsOf(browser, "embed_tokens");
  REQUIRE(rows.AsArray().size() == 8);
  const std::vector<double> sizes = {42, 42, 42, 41, 41, 41, 41, 41};
  double total = 0;
  for (const JsonValue& shard : rows.AsArray()) {
    total += Number(shard, "h");
    CHECK(Number(shard, "x") == Approx(Number(rows.AsArray()[0], "x")));
    CHECK(Number(shard, "w") == Approx(Number(rows.AsArray()[0], "w")));
  }
  for (size_t i = 0; i < sizes.size(); ++i) {
    CHECK(Number(rows.AsArray()[i], "h") == Approx(total * sizes[i] / 331).margin(0.2));
  }
  int mine = 0;
  for (const JsonValue& shard : rows.AsArray()) mine += shard.Find("mine")->AsBool() ? 1 : 0;
  CHECK(mine == 1);
  CHECK(rows.AsArray()[0].Find("mine")->AsBool());
  // Another rank, another shard: rank 1 is the next of tp.
  browser.Evaluate("document.activeElement.blur()");
  browser.Key("]");
  const JsonValue next = ShardsOf(browser, "embed_tokens");
  CHECK_FALSE(next.AsArray()[0].Find("mine")->AsBool());
  for (const JsonValue& shard : next.AsArray()) {
    const double middle = Number(shard, "y") + Number(shard, "h") / 2 - Number(next.AsArray()[0], "y");
    CHECK(shard.Find("mine")->AsBool() == (middle > total * 83 / 331 && middle < total * 125 / 331));
  }
  // Columns over tp, rows over dp_shard: a grid of 4 by 2, no two alike.
  const JsonValue grid = ShardsOf(browser, "down_proj");
  REQUIRE(grid.AsArray().size() == 8);
  std::set<std::string> colors;
  std::set<int64_t> left;
  std::set<int64_t> top;
  for (const JsonValue& shard : grid.AsArray()) {
    colors.insert(shard.Find("color")->AsString());
    left.insert(static_cast<int64_t>(Number(shard, "x")));
    top.insert(static_cast<int64_t>(Number(shard, "y")));
  }
  CHECK(colors.size() == 8);
  CHECK(left.size() == 4);
  CHECK(top.size() == 2);
}

TEST_CASE("memory and collectives are as long as they are many") {
  Pages pages;
  if (!pages) return;
  Browser& browser = pages.Open(SmallPlan());
  const JsonValue bars = browser.Evaluate(
      "[...document.querySelectorAll('.bar-row')].map((row) => [...row.querySelectorAll('.fill')].map((e) => "
      "e.getBoundingClientRect().width).concat(row.querySelector('.track').getBoundingClientRect().width))");
  REQUIRE(bars.AsArray().size() > 1);  // 331 rows make the ranks unlike
  double longest = 0;
  for (const JsonValue& bar : bars.AsArray()) {
    const double filled = bar.AsArray()[0].AsDouble() + bar.AsArray()[1].AsDouble();
    CHECK(filled <= bar.AsArray()[2].AsDouble() + 0.5);
    longest = std::max(longest, filled / bar.AsArray()[2].AsDouble());
  }
  CHECK(longest == Approx(1).margin(0.01));
  // Four times the tokens: what moves with them becomes longer beside what does not.
  const auto width = [&] {
    return browser
        .Evaluate(
            "(() => { const row = [...document.querySelectorAll('#calls tbody tr')].find((r) => "
            "r.textContent.includes('embed_tokens')); return "
            "row.querySelector('.call-bar').getBoundingClientRect().width; })()")
        .AsDouble();
  };
  const double before = width();
  browser.Evaluate(
      "(() => { const e = document.getElementById('sequence'); e.value = 64; e.dispatchEvent(new Event('change')); "
      "})()");
  CHECK(width() > 2 * before);
  CHECK(browser.Evaluate("document.querySelectorAll('.finding.warning').length").AsInt() == 1);
}

TEST_CASE("a narrow window needs no scrolling sideways") {
  Pages pages;
  if (!pages) return;
  Browser& browser = pages.Open(SmallPlan(), {.width = 400, .height = 860});
  CHECK(browser.Evaluate("document.documentElement.scrollWidth").AsInt() <= 400);
  CHECK(browser
            .Evaluate("[...document.querySelectorAll('.row, .card, .bar-row, .finding, .stacked tr')].every((e) => { "
                      "const b = e.getBoundingClientRect(); return b.left >= 0 && b.right <= 400; })")
            .AsBool());
  // No name is broken into single letters.
  CHECK(
      browser
          .Evaluate("[...document.querySelectorAll('.row .label')].every((e) => e.getBoundingClientRect().height < 60)")
          .AsBool());
  CHECK(browser
            .Evaluate("document.getElementById('details').getBoundingClientRect().top > "
                      "document.getElementById('tree').getBoundingClientRect().bottom - 1")
            .AsBool());
  KeepPicture(browser, "light_400");
  browser.Show({.width = 400, .height = 860, .dark = true});
  CheckContrast(browser);
  KeepPicture(browser, "dark_400");
}

}  // namespace
}  // namespace moonshard::test
