// Data: what the program wrote (report_data.h), and questions about it.

const data = JSON.parse(document.getElementById("data").textContent);
const state = { rank: data.rank, expanded: new Set(), selected: "", query: "", filter: "all", limit: 400, batch: data.tokens[0], sequence: data.tokens[1] };

// An element: make("td", { class: "number" }, "text", child, ...).
function make(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value !== undefined && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== undefined && child !== null && child !== false));
  return element;
}

const byId = (id) => document.getElementById(id);
const count = (number) => number.toLocaleString("en").replaceAll(",", " ");

function bytesText(bytes) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (bytes >= 1024 && unit + 1 < units.length) {
    bytes /= 1024;
    ++unit;
  }
  return (unit === 0 ? bytes : bytes.toFixed(2)) + " " + units[unit];
}

function percent(part, all) {
  return all === 0 ? "0 %" : (100 * part / all).toFixed(1) + " %";
}

const shapeText = (shape) => "[" + shape.join(", ") + "]";

// The coordinate of a rank on each axis.
function coordinatesOf(rank) {
  const out = {};
  for (const axis of [...data.axes].reverse()) {
    out[axis.name] = rank % axis.size;
    rank = Math.floor(rank / axis.size);
  }
  return out;
}

// Which shard of a sharded dim a rank holds: its number among the places on the axes that shard the dim.
function placeOf(dim, rank) {
  const coordinates = coordinatesOf(rank);
  let place = 0;
  for (const name of dim.axes) {
    place = place * data.axes.find((axis) => axis.name === name).size + coordinates[name];
  }
  return place;
}

// "tp 0", "dp_shard 1, tp 0": the place's name on the axes.
function placeText(dim, place) {
  const parts = [];
  for (const name of [...dim.axes].reverse()) {
    const size = data.axes.find((axis) => axis.name === name).size;
    parts.unshift(name + " " + place % size);
    place = Math.floor(place / size);
  }
  return parts.join(", ");
}

const lengthOf = (intervals) => intervals.reduce((sum, [, length]) => sum + length, 0);

// A rank's shape; null where the data stops before its shard.
function localShape(param, rank) {
  if (!param.dims) return param.shape;
  const out = [];
  for (let d = 0; d < param.shape.length; ++d) {
    const dim = param.dims[d];
    const shard = dim && dim.shards[placeOf(dim, rank)];
    if (dim && !shard) return null;
    out.push(dim ? lengthOf(shard) : param.shape[d]);
  }
  return out;
}

const product = (shape) => shape.reduce((all, size) => all * size, 1);

function localBytes(param, rank) {
  const local = localShape(param, rank);
  const elements = product(param.shape);
  return local === null || elements === 0 ? 0 : param.bytes * product(local) / elements;
}

// What is under a node: parameters, and bytes in full and on the chosen rank. Nodes are shared, so each is added up once.
const sums = { rank: -1, of: [] };
function sumOf(index) {
  if (sums.rank !== state.rank) Object.assign(sums, { rank: state.rank, of: [] });
  if (sums.of[index]) return sums.of[index];
  const node = data.nodes[index];
  const sum = { elements: 0, full: 0, local: 0, modules: node.s >= 0 ? 1 : 0 };
  for (const param of node.s >= 0 ? data.steps[node.s].params : []) {
    if (node.t && node.t.includes(param.name)) continue;
    sum.elements += param.buffer ? 0 : product(param.shape);
    sum.full += param.bytes;
    sum.local += localBytes(param, state.rank);
  }
  for (const [, copies, child] of node.k) {
    const below = sumOf(child);
    for (const key of Object.keys(sum)) sum[key] += copies * below[key];
  }
  return sums.of[index] = sum;
}

// Every entry of the folded tree, made on first use: {key, path, labels, node, copies, parent}.
let entries = null;
function allEntries() {
  if (entries) return entries;
  entries = [];
  const walk = (node, key, labels, copies, parent) => {
    const entry = { key, labels, path: labels.join("."), node, copies, parent };
    entries.push(entry);
    data.nodes[node].k.forEach(([label, times, child], i) =>
      walk(child, key + "/" + i, [...labels, label], copies * times, entry));
  };
  walk(data.root, "", [], 1, null);
  return entries;
}

// "model.layers.{0..31}.mlp" as ["model", "layers", "{0..31}", "mlp"].
const labelsOf = (path) => path.match(/\{[^}]*\}|[^.]+/g) || [];

// "{0,1,2,5}" as "{0..2,5}": what a plan has made is longer than what a person writes.
function shortPattern(pattern) {
  return pattern.replaceAll(/\{(\d+(?:,\d+){2,})\}/g, (all, list) => {
    const runs = [];
    for (const number of list.split(",").map(Number)) {
      const run = runs.at(-1);
      if (run && number === run[1] + 1) run[1] = number;
      else runs.push([number, number]);
    }
    return "{" + runs.map(([first, last]) => first === last ? first : first + (last === first + 1 ? "," : "..") + last).join(",") + "}";
  });
}

const stepsOf = (node) => data.nodes[node].s < 0 ? null : data.steps[data.nodes[node].s];

// Whether a folded label, "{0..31}" or "mlp", is or holds this name.
function labelHolds(label, name) {
  if (!label.startsWith("{")) return label.includes(name);
  if (!/^\d+$/.test(name)) return label.includes(name);
  return label.slice(1, -1).split(",").some((part) => {
    const [first, last] = part.split("..").map(Number);
    return last === undefined ? first === Number(name) : first <= Number(name) && Number(name) <= last;
  });
}

// Whether a dotted path (or a part of one) names the entry: numbers are looked up in what is folded.
function pathMatches(entry, text) {
  if (entry.path.toLowerCase().includes(text)) return true;
  const wanted = text.split(".").filter((part) => part !== "");
  for (let begin = 0; wanted.length > 0 && begin + wanted.length <= entry.labels.length; ++begin) {
    if (wanted.every((part, i) => labelHolds(entry.labels[begin + i].toLowerCase(), part))) return true;
  }
  return false;
}

const communicates = (steps) => steps && [...steps.inputs, ...steps.outputs].some((redistribution) => redistribution && (redistribution.forward || redistribution.backward));

function termMatches(entry, term) {
  const steps = stepsOf(entry.node);
  if (/^rule:\d+$/.test(term)) return steps !== null && steps.rule === Number(term.slice(5));
  if (steps && steps.style.toLowerCase() === term) return true;
  return pathMatches(entry, term);
}

function filterMatches(entry) {
  const steps = stepsOf(entry.node);
  const params = steps ? steps.params : [];
  switch (state.filter) {
    case "sharded": return params.some((param) => param.dims);
    case "replicated": return params.some((param) => !param.dims);
    case "redistributions": return communicates(steps);
    case "unclaimed": return steps !== null && steps.rule < 0 && params.length > 0;
    case "findings": return data.findings.some((finding) => finding.path && pathIs(entry, finding.path));
    default: return true;
  }
}

// Whether an entry is the module at this very path, or the one that owns the parameter at it.
function pathIs(entry, path) {
  const names = path.split(".");
  const fits = (labels) => labels.length === names.length && labels.every((label, i) =>
    label.startsWith("{") ? labelHolds(label, names[i]) : label === names[i]);
  const steps = stepsOf(entry.node);
  return fits(entry.labels) ||
    (steps !== null && steps.params.some((param) => fits([...entry.labels, param.name])));
}
