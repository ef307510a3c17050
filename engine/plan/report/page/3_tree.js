// Tree: the folded modules as a WAI-ARIA tree. Only rows that can be seen are in the document, and at most `state.limit`
// of them; what is folded is not.

const isOpen = (entry) => state.expanded.has(entry.key);
const searching = () => state.query !== "" || state.filter !== "all";

// The keys that the search and the filter leave: what matches, and its ancestors.
let shown = null;
function findShown() {
  shown = null;
  if (!searching()) return;
  const terms = state.query.toLowerCase().split(/\s+/).filter((term) => term !== "");
  shown = { keys: new Set(), matches: 0 };
  for (const entry of allEntries()) {
    if (!filterMatches(entry) || !terms.every((term) => termMatches(entry, term))) continue;
    if (entry.key === "" || (stepsOf(entry.node) === null && state.filter !== "all")) continue;
    ++shown.matches;
    for (let above = entry; above; above = above.parent) shown.keys.add(above.key);
  }
}

// Rows from top to bottom: [{entry, level, open, leaf, position, of}].
function visibleRows() {
  const rows = [];
  const add = (node, key, labels, copies, level) => {
    const children = data.nodes[node].k.map(([label, times, child], i) => ({ label, times, child, key: key + "/" + i }))
      .filter((child) => !shown || shown.keys.has(child.key));
    children.forEach(({ label, times, child, key: childKey }, i) => {
      if (rows.length >= state.limit) {
        rows.truncated = true;
        return;
      }
      const entry = { key: childKey, labels: [...labels, label], path: [...labels, label].join("."), node: child, copies: copies * times };
      const leaf = data.nodes[child].k.length === 0;
      const matchesBelow = shown && data.nodes[child].k.some((unused, j) => shown.keys.has(childKey + "/" + j));
      const open = !leaf && (shown ? matchesBelow && !state.expanded.has("-" + childKey) || isOpen(entry) && matchesBelow : isOpen(entry));
      rows.push({ entry, label, times, level, open, leaf, position: i + 1, of: children.length });
      if (open) add(child, childKey, entry.labels, entry.copies, level + 1);
    });
  };
  if (data.nodes[data.root].s >= 0 && !shown) {
    rows.push({ entry: { key: "", labels: [], path: "", node: data.root, copies: 1 }, label: "(the model itself)", times: 1,
                level: 1, open: false, leaf: true, position: 1, of: 1 });
  }
  add(data.root, "", [], 1, 1);
  return rows;
}

let rows = [];
function renderTree(focus) {
  findShown();
  rows = visibleRows();
  const tree = byId("tree");
  if (!rows.some((row) => row.entry.key === state.selected)) state.selected = rows.length > 0 ? rows[0].entry.key : "";
  tree.replaceChildren(...rows.map(treeRow));
  if (rows.truncated) {
    const more = make("button", { type: "button", class: "more" }, "Show more rows");
    more.addEventListener("click", () => { state.limit += 400; renderTree(true); });
    tree.append(make("div", { role: "none" }, more));
  }
  if (rows.length === 0) tree.append(make("p", { class: "note" }, "Nothing matches."));
  byId("search-result").textContent = shown ? count(shown.matches) + (shown.matches === 1 ? " match" : " matches") : "";
  renderDetails();
  if (focus) focusRow();
}

function focusRow() {
  const row = byId("tree").querySelector("[tabindex='0']");
  if (!row) return;
  row.focus({ preventScroll: true });
  row.scrollIntoView({ block: "nearest" });
}

function treeRow(row) {
  const { entry, label, times } = row;
  const steps = stepsOf(entry.node);
  const selected = entry.key === state.selected;
  const sum = sumOf(entry.node);
  const name = make("span", { class: "name" },
    make("span", { class: "twisty", "aria-hidden": "true" }, row.leaf ? "" : row.open ? "▾" : "▸"),
    make("span", { class: "label" }, label), times > 1 && make("span", { class: "copies" }, "× " + count(times)));
  const what = make("span", { class: "what" }, steps && steps.style && make("span", { class: "chip" }, steps.style),
    steps && steps.rule < 0 && steps.params.length > 0 && !steps.fallback && !data.failed && make("span", { class: "chip quiet" }, "no rule"));
  const shards = make("span", { class: "shards" });
  const params = steps ? steps.params : [];
  for (const param of params.slice(0, 4)) shards.append(drawParam(param, false));
  if (params.length > 0 && !data.failed) shards.append(make("span", { class: "layout", title: params[0].layout }, params[0].layout));
  const bytes = make("span", { class: "bytes", title: data.failed ? "full" : "on this rank / full" },
    sum.full > 0 ? (data.failed ? "" : bytesText(sum.local * times) + " / ") + bytesText(sum.full * times) : "");
  const element = make("div", {
    role: "treeitem", class: selected ? "row selected" : "row", style: "--level:" + (row.level - 1),
    "aria-level": row.level, "aria-posinset": row.position, "aria-setsize": row.of, "aria-selected": String(selected),
    "aria-expanded": row.leaf ? undefined : String(row.open), tabindex: selected ? "0" : "-1", "data-key": entry.key,
    "aria-label": label + (times > 1 ? ", " + times + " alike" : "") + (steps && steps.style ? ", " + steps.style : ""),
  }, name, what, shards, bytes);
  element.addEventListener("click", (event) => {
    state.selected = entry.key;
    if (event.target.closest(".twisty") || event.detail === 2) toggle(row, !row.open);
    renderTree(true);
  });
  return element;
}

function toggle(row, open) {
  if (row.leaf) return;
  if (open) {
    state.expanded.add(row.entry.key);
    state.expanded.delete("-" + row.entry.key);
  } else {
    state.expanded.delete(row.entry.key);
    state.expanded.add("-" + row.entry.key);  // also where a search has unfolded it
  }
}

function select(index) {
  const row = rows[Math.min(Math.max(index, 0), rows.length - 1)];
  if (!row) return;
  state.selected = row.entry.key;
  renderTree(true);
}

function treeKey(event) {
  const index = rows.findIndex((row) => row.entry.key === state.selected);
  const row = rows[index];
  if (!row || event.ctrlKey || event.altKey || event.metaKey) return;
  switch (event.key) {
    case "ArrowDown": select(index + 1); break;
    case "ArrowUp": select(index - 1); break;
    case "Home": select(0); break;
    case "End": select(rows.length - 1); break;
    case "PageDown": select(index + 10); break;
    case "PageUp": select(index - 10); break;
    case "ArrowRight":
      if (row.leaf) return;
      if (row.open) select(index + 1);
      else { toggle(row, true); renderTree(true); }
      break;
    case "ArrowLeft":
      if (row.open) { toggle(row, false); renderTree(true); }
      else {
        const above = rows.findLastIndex((other, i) => i < index && other.level < row.level);
        if (above >= 0) select(above);
      }
      break;
    case "Enter": case " ":
      toggle(row, !row.open);
      renderTree(true);
      break;
    default: return;
  }
  event.preventDefault();
}

// Unfolds the ancestors of an entry, and selects it.
function reveal(entry) {
  for (let above = entry.parent; above; above = above.parent) state.expanded.add(above.key);
  state.query = byId("search").value = "";
  state.filter = byId("filter").value = "all";
  state.selected = entry.key;
  renderTree(true);
}

// What is unfolded at first: down to the parts of a layer, as long as the page stays short.
function unfoldFirst() {
  let open = 0;
  const level = (node, key, depth) => data.nodes[node].k.forEach(([, , child], i) => {
    const childKey = key + "/" + i;
    const children = data.nodes[child].k.length;
    if (children === 0 || open + children > 40 || depth > 4) return;
    open += children;
    state.expanded.add(childKey);
    level(child, childKey, depth + 1);
  });
  level(data.root, "", 1);
}
