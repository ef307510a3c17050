// Sections: the cards on top, memory, collectives, rules, findings.

function renderHead() {
  document.title = data.model + " · moonshard";
  byId("model-name").textContent = data.model;
  const mesh = data.axes.map((axis) => axis.name + "=" + axis.size).join(", ") || "one rank";
  byId("subtitle").textContent = "plan " + data.plan + " · mesh " + mesh + (data.failed ? "" : " · " + data.hash.slice(0, 12));
  byId("subtitle").title = (data.chosen ? data.chosen + ". " : "") + (data.failed ? "" : "hash " + data.hash);
  byId("rank").max = data.world - 1;
  byId("rank").value = state.rank;
}

function card(title, value, note) {
  return make("div", { class: "card" }, make("dt", {}, title), make("dd", {}, value, make("small", {}, note)));
}

// Parts that need a plan without errors are not shown; the findings come first.
function renderFailed() {
  const gone = ["memory", "collectives"].concat(data.steps.length === 0 ? ["model"] : [], data.rules.length === 0 ? ["rules"] : []);
  for (const id of gone) {
    byId(id).hidden = true;
    document.querySelector(`nav a[href="#${id}"]`).hidden = true;
  }
  byId("rank").closest("label").hidden = true;
  for (const value of ["sharded", "replicated", "redistributions", "unclaimed"]) byId("filter").querySelector(`[value=${value}]`).remove();
  byId("summary").after(byId("findings"));
  const errors = data.findings.filter((finding) => finding.severity === "error").length;
  byId("cards").replaceChildren(
    card("Findings", String(data.findings.length), count(errors) + (errors === 1 ? " error" : " errors")),
    card("Ranks", count(data.world), data.axes.map((axis) => axis.name + " " + axis.size).join(" × ") || "no axis"));
  if (data.steps.length > 0) byId("cards").append(card("Parameters", count(data.totals.params), "in " + count(data.modules) + " modules"));
  byId("findings-count").textContent = data.findings.length;
  byId("findings-title").after(make("p", { class: "note", id: "failed" },
    "The plan has errors, so its effect on the model is unknown: this page has no layouts, memory and collectives."));
}

function renderCards() {
  const { params, sharded } = data.totals;
  const held = data.memory.map((row) => row.sharded + row.full);
  const most = Math.max(...held);
  const calls = (direction) => data.calls.filter((call) => call.direction === direction).reduce((sum, call) => sum + call.copies, 0);
  const errors = data.findings.filter((finding) => finding.severity === "error").length;
  byId("cards").replaceChildren(
    card("Parameters", count(params), percent(sharded, params) + " of them sharded"),
    card("Ranks", count(data.world), data.axes.map((axis) => axis.name + " " + axis.size).join(" × ") || "no axis"),
    card("Memory per rank", bytesText(most), held.length > 1 ? "at most; at least " + bytesText(Math.min(...held)) : "parameters and buffers"),
    card("Collectives", count(calls("forward")) + " + " + count(calls("backward")), "forward + backward, each step"),
    card("Findings", String(data.findings.length), errors > 0 ? errors + " errors" : data.findings.length > 0 ? "no errors" : "none"));
  byId("findings-count").textContent = data.findings.length || "";
}

function renderMemory() {
  const most = Math.max(...data.memory.map((row) => row.sharded + row.full), 1);
  const full = sumOf(data.root).full;
  const last = data.memory.at(-1);
  const counted = last.first + last.count;
  byId("memory-note").replaceChildren("Parameters and buffers; gradients, optimizer state and activations come on top. The full model is " + bytesText(full) + ". ",
    make("span", { class: "key cut" }), " sharded ", make("span", { class: "key full" }), " replicated on every rank",
    counted < data.world ? ". The first " + count(counted) + " ranks of " + count(data.world) + "." : "");
  byId("memory-rows").replaceChildren(...data.memory.slice(0, 64).map((row) => {
    const held = row.sharded + row.full;
    const mine = row.first <= state.rank && state.rank < row.first + row.count;
    return make("div", { class: mine ? "bar-row mine" : "bar-row", role: "listitem" },
      make("span", { class: "bar-name" }, (row.count > 1 ? "ranks " : "rank ") + row.ranks.replace("..", "–")),
      make("span", { class: "track", "aria-hidden": "true" },
        make("span", { class: "fill cut", style: `width:${100 * row.sharded / most}%` }),
        make("span", { class: "fill full", style: `width:${100 * row.full / most}%` })),
      make("span", { class: "bar-value" }, bytesText(held) + " = " + bytesText(row.sharded) + " + " + bytesText(row.full)));
  }));
}

// Bytes of redistributions and of exchanged tokens grow with the tokens; those of other collectives do not.
function bytesOfCall(call) {
  const scale = ["input", "output", "exchange"].includes(call.of) ? state.batch * state.sequence / (data.tokens[0] * data.tokens[1]) : 1;
  return call.bytes * scale;
}

// "model.layers.{0..31}" of a path in it: up to the first number.
function layerOf(call) {
  if (call.of === "gradients") return "gradient sums";
  if (call.at === "") return "(root)";
  const labels = labelsOf(call.at);
  const number = labels.findIndex((label) => /^(\d+|\{.*\})$/.test(label));
  return number < 0 ? call.at : labels.slice(0, number + 1).join(".");
}

const kinds = ["all_reduce", "all_gather", "reduce_scatter", "all_to_all"];

function callCell(calls, most) {
  const parts = kinds.map((kind) => {
    const of = calls.filter((call) => call.kind === kind);
    return { kind, times: of.reduce((sum, call) => sum + call.copies, 0), bytes: of.reduce((sum, call) => sum + call.copies * bytesOfCall(call), 0) };
  }).filter((part) => part.times > 0);
  return make("td", {}, ...parts.map((part) => make("div", { class: "call" },
    make("span", { class: "chip kind-" + part.kind }, count(part.times) + " × " + part.kind),
    make("span", { class: "call-bytes" }, bytesText(Math.round(part.bytes))),
    most > 0 && make("span", { class: "call-bar kind-" + part.kind, "aria-hidden": "true", style: `width:${100 * part.bytes / most}%` }))));
}

const openCalls = new Set();
function renderCalls() {
  byId("calls-rank").textContent = data.rank;
  byId("batch").value = state.batch;
  byId("sequence").value = state.sequence;
  const groups = new Map();
  for (const call of data.calls) {
    const layer = layerOf(call);
    if (!groups.has(layer)) groups.set(layer, []);
    groups.get(layer).push(call);
  }
  const total = (calls, direction) => calls.filter((call) => call.direction === direction).reduce((sum, call) => sum + call.copies * bytesOfCall(call), 0);
  const most = Math.max(0, ...[...groups.values()].flatMap((calls) => [total(calls, "forward"), total(calls, "backward")]));
  const of = (calls, direction) => calls.filter((call) => call.direction === direction);
  const body = make("tbody", {});
  [...groups].slice(0, 200).forEach(([layer, calls], index) => {
    const parts = new Map();
    for (const call of calls) {
      const name = (call.at.startsWith(layer + ".") ? call.at.slice(layer.length + 1) : call.at) + " " + call.of;
      if (!parts.has(name)) parts.set(name, []);
      parts.get(name).push(call);
    }
    const open = openCalls.has(layer);
    const button = make("button", { type: "button", class: "unfold", "aria-expanded": String(open), "aria-controls": "call-parts-" + index },
      make("span", { class: "twisty", "aria-hidden": "true" }, open ? "▾" : "▸"), make("code", {}, layer));
    button.addEventListener("click", () => {
      openCalls[open ? "delete" : "add"](layer);
      renderCalls();
      byId("calls").querySelectorAll(".unfold")[index].focus();
    });
    body.append(make("tr", {}, make("th", { scope: "row" }, button), callCell(of(calls, "forward"), most), callCell(of(calls, "backward"), most)));
    if (!open) return;
    [...parts].forEach(([name, some], i) => body.append(make("tr", { class: "part", id: i === 0 ? "call-parts-" + index : undefined },
      make("th", { scope: "row" }, make("code", {}, name)), callCell(of(some, "forward"), most), callCell(of(some, "backward"), most))));
  });
  const foot = make("tfoot", {}, make("tr", {}, make("th", { scope: "row" }, "all"), callCell(of(data.calls, "forward"), 0), callCell(of(data.calls, "backward"), 0)));
  byId("calls").replaceChildren(make("thead", {}, make("tr", {}, make("th", { scope: "col" }, "layer"), make("th", { scope: "col" }, "forward"), make("th", { scope: "col" }, "backward"))),
    body, foot);
  if (data.calls.length === 0) byId("calls").replaceChildren(make("caption", {}, "A training step has no collectives."));
}

function renderRules() {
  const body = make("tbody", {}, ...data.rules.map((rule, i) => {
    const show = make("button", { type: "button" }, count(rule.matches));
    show.title = data.failed ? "" : "show them in the tree";
    show.disabled = rule.matches === 0 || rule.parameter || data.failed === true;
    show.addEventListener("click", () => {
      byId("search").value = state.query = "rule:" + i;
      byId("model").scrollIntoView();
      renderTree(true);
    });
    return make("tr", { id: "rule-" + i, tabindex: "-1" }, make("td", { class: "number" }, String(i)), make("td", { class: "pattern" }, make("code", {}, shortPattern(rule.pattern))),
      make("td", {}, make("span", { class: "chip" }, rule.style)), make("td", { class: "number" }, show), make("td", {}, make("code", { class: "source" }, rule.source)));
  }));
  byId("rule-rows").className = "stacked";
  byId("rule-rows").replaceChildren(make("thead", {}, make("tr", {}, ...["", "pattern", "style", "matches", "where"].map((title) => make("th", { scope: "col" }, title)))), body);
}

function findingCard(finding) {
  const facts = ["declared", "required", "help"].filter((key) => finding[key])
    .flatMap((key) => [make("dt", {}, key), make("dd", {}, shortPattern(finding[key]))]);
  const entry = finding.path && allEntries().find((other) => pathIs(other, finding.path));
  const link = finding.path && (entry ? make("button", { type: "button", class: "link" }, finding.path) : make("code", {}, shortPattern(finding.path)));
  if (entry) link.addEventListener("click", () => { reveal(entry); byId("model").scrollIntoView(); });
  return make("article", { class: "finding " + finding.severity },
    make("h4", {}, make("span", { class: "severity" }, finding.severity), " ", make("code", {}, finding.id), " ", shortPattern(finding.message)),
    (finding.source || link) && make("p", { class: "note" }, finding.source || "", finding.source && link ? " · " : "", link || ""),
    facts.length > 0 && make("dl", { class: "facts" }, ...facts));
}

function renderFindings() {
  const order = { error: 0, warning: 1, note: 2 };
  const sorted = [...data.findings].sort((a, b) => order[a.severity] - order[b.severity]);
  byId("finding-rows").replaceChildren(...sorted.slice(0, 200).map(findingCard));
  if (sorted.length === 0) byId("finding-rows").append(make("p", { class: "note" }, "No findings."));
  if (sorted.length > 200) byId("finding-rows").append(make("p", { class: "note" }, "and " + (sorted.length - 200) + " more; check lists them all"));
}
