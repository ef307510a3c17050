// Details: the selected module: its rule, redistributions at its boundary, each parameter drawn large.

function selectedRow() { return rows.find((row) => row.entry.key === state.selected); }

function redistributionLine(what, redistribution) {
  if (!redistribution) return null;
  const collectives = [["forward", redistribution.forward], ["backward", redistribution.backward]].filter(([, kind]) => kind)
    .map(([direction, kind]) => make("span", { class: "chip kind-" + kind }, kind + " " + direction));
  if (redistribution.from === redistribution.to && collectives.length === 0) return make("li", {}, what + ": ", make("code", {}, redistribution.from));
  return make("li", {}, what + ": ", make("code", {}, redistribution.from), " → ", make("code", {}, redistribution.to), " ", ...collectives);
}

function movesList(steps) {
  const lines = [];
  steps.inputs.forEach((redistribution, i) => lines.push(redistributionLine("input" + (steps.inputs.length > 1 ? " " + i : ""), redistribution)));
  steps.outputs.forEach((redistribution, i) => lines.push(redistributionLine("output" + (steps.outputs.length > 1 ? " " + i : ""), redistribution)));
  if (steps.masked) lines.push(make("li", {}, "ids whose row another rank owns give rows of zeros"));
  if (steps.after) lines.push(make("li", {}, "added after the output's redistribution: ", make("code", {}, steps.after.join(", "))));
  if (steps.route) lines.push(make("li", {}, "routes: ", make("code", {}, steps.route)));
  if (steps.missing) lines.push(make("li", {}, "cannot be run: " + steps.missing));
  return lines.some((line) => line) ? make("ul", { class: "redistributions" }, ...lines) : null;
}

function paramDetails(param, tied) {
  const local = localShape(param, state.rank);
  const here = local === null ? "not in this page" : shapeText(local) + ", " + bytesText(localBytes(param, state.rank));
  const uncut = param.shape.map((size, d) => d).filter((d) => param.shape.length > 2 && !(param.dims && param.dims[d]));
  return make("div", { class: "param" },
    make("h4", {}, make("code", {}, param.name), param.buffer && make("span", { class: "chip quiet" }, "buffer"),
      tied && make("span", { class: "chip quiet" }, "tied: stored under another parameter")),
    drawParam(param, true),
    make("dl", { class: "facts" },
      !data.failed && make("dt", {}, "layout"), !data.failed && make("dd", {}, make("code", {}, param.layout)),
      make("dt", {}, "full"), make("dd", {}, shapeText(param.shape) + " " + param.dtype + ", " + bytesText(param.bytes)),
      !data.failed && make("dt", {}, "rank " + state.rank), !data.failed && make("dd", {}, here),
      uncut.length > 0 && param.dims && make("dt", {}, "unsharded"), uncut.length > 0 && param.dims && make("dd", {}, "dim " + uncut.join(", dim ")),
      ...manyPieces(param)),
    param.dims && shardList(param));
}

// Every shard of every sharded dim in words, for drawings too small for labels.
function shardList(param) {
  const lines = param.dims.flatMap((dim, d) => !dim ? [] : distinctShards(param, d).map((shard) => {
    const intervals = shard.intervals.map(([begin, length]) => begin + "–" + (begin + length - 1)).join(", ") || "nothing";
    return make("tr", {}, make("td", {}, holders(dim, shard.places)), make("td", {}, "dim " + d + ": " + intervals),
      make("td", { class: "number" }, String(lengthOf(shard.intervals))));
  }));
  return make("details", { class: "who" }, make("summary", {}, "shards by rank"), make("table", {}, make("tbody", {}, ...lines)));
}

function manyPieces(param) {
  const many = (param.dims || []).filter((dim) => dim && dim.of > dim.shards.length);
  return many.length === 0 ? [] : [make("dt", {}, "shards"), make("dd", {}, many.map((dim) => dim.of + ", of which the first " + dim.shards.length + " are drawn").join("; "))];
}

function ruleLine(steps) {
  if (steps.rule >= 0) {
    const rule = data.rules[steps.rule];
    const link = make("a", { href: "#rule-" + steps.rule }, "rule " + steps.rule);
    return make("p", {}, link, " ", make("code", {}, shortPattern(rule.pattern)), make("br"), make("span", { class: "note" }, rule.source));
  }
  return make("p", {}, steps.fallback ? "by default(), " + steps.fallback : "no rule claims the module: replicated on every rank");
}

function renderDetails() {
  const panel = byId("details");
  const row = selectedRow();
  if (!row) return panel.replaceChildren();
  const { entry } = row;
  const node = data.nodes[entry.node];
  const steps = stepsOf(entry.node);
  const sum = sumOf(entry.node);
  const findings = data.findings.filter((finding) => finding.path && pathIs(entry, finding.path));
  panel.replaceChildren(...[
    make("h3", {}, entry.path || "(the model itself)"),
    make("p", { class: "chips" }, entry.copies > 1 && make("span", { class: "chip quiet" }, count(entry.copies) + " alike"),
      steps && steps.style && make("span", { class: "chip" }, steps.style),
      node.u && make("span", { class: "chip quiet" }, "fsdp unit"), node.r && make("span", { class: "chip quiet" }, "recomputed")),
    make("p", { class: "note" }, sum.full === 0 ? "owns no parameter" :
      (entry.copies > 1 ? "each: " : "") + count(sum.elements) + " parameters, " + bytesText(sum.full) + (data.failed ? "" : ", of which rank " +
      state.rank + " holds " + bytesText(sum.local) + " (" + percent(sum.local, sum.full) + ")")),
    steps && !data.failed && ruleLine(steps),
    steps && movesList(steps),
    ...findings.map(findingCard),
    ...(steps ? steps.params.map((param) => paramDetails(param, node.t && node.t.includes(param.name))) : []),
  ].filter((part) => part));
}
