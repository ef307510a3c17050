// Drawing: a parameter as a rectangle, divided as it is sharded, each shard with the ranks that hold it. Rows are one tensor dim,
// columns another; more dims are sheets behind, or slices side by side where they are sharded too.

const palette = ["#3566c9", "#e08a2e", "#2a9268", "#bf3f7f", "#7757c4", "#128596", "#9c6f14", "#b6483b"];

function luminance(hex) {
  const [r, g, b] = [1, 3, 5].map((i) => {
    const c = parseInt(hex.slice(i, i + 2), 16) / 255;
    return c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}
// Black or white, whichever stands out more; one of them always has a contrast of 4.5.
const inkOn = (hex) => luminance(hex) > 0.179 ? "#000000" : "#ffffff";

function svg(tag, attributes, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

// The shards of one dim without repeats: [{places: [0, 1], intervals}]. An unsharded dim is one shard.
function distinctShards(param, d) {
  const dim = param.dims && param.dims[d];
  if (!dim) return [{ places: [], intervals: [[0, param.shape[d]]] }];
  const known = new Map();
  dim.shards.forEach((intervals, place) => {
    const text = JSON.stringify(intervals);
    if (!known.has(text)) known.set(text, { places: [], intervals });
    known.get(text).places.push(place);
  });
  return [...known.values()];
}

// Which dims are drawn: {rows, columns, sliced}; -1 for none. Sharded dims first, then the last ones.
function drawnDims(param) {
  const dims = param.shape.map((size, d) => d);
  const sharded = dims.filter((d) => param.dims && param.dims[d]);
  if (dims.length < 2) return { rows: -1, columns: dims.length - 1, sliced: -1 };
  const chosen = sharded.slice(-2);
  for (const d of [...dims].reverse()) {
    if (chosen.length < 2 && !chosen.includes(d)) chosen.push(d);
  }
  chosen.sort((a, b) => a - b);
  return { rows: chosen[0], columns: chosen[1], sliced: sharded.length > 2 ? sharded[0] : -1 };
}

// "tp 0", "tp 0, 1": the ranks that hold a shard of a dim.
function holders(dim, places) {
  if (places.length === 1) return placeText(dim, places[0]);
  if (dim.axes.length > 1) return places.map((place) => placeText(dim, place)).join(" and ");
  const run = places.length > 2 && places.at(-1) - places[0] === places.length - 1;
  return dim.axes[0] + " " + (run ? places[0] + "–" + places.at(-1) : places.join(", "));
}

// For those who cannot see the drawing.
function describe(param) {
  const parts = [];
  param.shape.forEach((size, d) => {
    const dim = param.dims && param.dims[d];
    if (!dim) return;
    const shards = distinctShards(param, d).slice(0, 8).map((shard) =>
      holders(dim, shard.places) + ": " + (shard.intervals.map(([b, n]) => b + " to " + (b + n - 1)).join(" and ") || "nothing"));
    parts.push("dim " + d + " of " + size + ": " + shards.join("; ") + (dim.of > 8 ? "; and so on" : ""));
  });
  return param.name + " " + shapeText(param.shape) + ", " + (parts.join(". ") || "replicated on every rank");
}

// The cells of one sheet: [{x, y, w, h, color, label, mine}] in a box of size 1 x 1.
function cells(param, dims, slice) {
  const at = (d) => d < 0 ? [{ places: [], intervals: [[0, 1]] }] : distinctShards(param, d);
  const size = (d) => d < 0 ? 1 : Math.max(param.shape[d], 1);
  const mineIn = (d, shard) => d < 0 || !param.dims || !param.dims[d] ||
    shard.places.includes(placeOf(param.dims[d], state.rank));
  const rows = at(dims.rows);
  const columns = at(dims.columns);
  const out = [];
  rows.forEach((row, i) => columns.forEach((column, j) => {
    const label = [[dims.rows, row], [dims.columns, column]].filter(([, shard]) => shard.places.length > 0)
      .map(([d, shard]) => holders(param.dims[d], shard.places)).join(", ");
    const index = (slice.index * rows.length + i) * columns.length + j;
    for (const [y, h] of row.intervals) {
      for (const [x, w] of column.intervals) {
        out.push({ x: x / size(dims.columns), y: y / size(dims.rows), w: w / size(dims.columns), h: h / size(dims.rows),
                   color: palette[index % palette.length], label: slice.label ? slice.label + ", " + label : label,
                   mine: slice.mine && mineIn(dims.rows, row) && mineIn(dims.columns, column) });
      }
    }
  }));
  return out;
}

function slices(param, dims) {
  if (dims.sliced < 0) return [{ index: 0, label: "", mine: true }];
  const dim = param.dims[dims.sliced];
  return distinctShards(param, dims.sliced).slice(0, 4).map((shard, index) => ({
    index, label: holders(dim, shard.places), mine: shard.places.includes(placeOf(dim, state.rank)) }));
}

// How long the sides are drawn: unlike sizes look unlike, but nothing gets too thin to see.
function sides(param, dims, box) {
  if (dims.columns < 0) return { width: box / 3, height: box / 3 };
  if (dims.rows < 0) return { width: box, height: Math.max(box / 7, 6) };
  const ratio = Math.min(Math.max(Math.sqrt(param.shape[dims.rows] / Math.max(param.shape[dims.columns], 1)), 0.4), 1.6);
  return ratio >= 1 ? { width: box / ratio, height: box } : { width: box, height: box * ratio };
}

// `large`: with labels and sizes. The shard of the chosen rank has a frame.
function drawParam(param, large) {
  const dims = drawnDims(param);
  const sheets = slices(param, dims);
  const box = large ? (sheets.length > 1 ? 120 : 190) : 20;
  const { width, height } = sides(param, dims, box);
  const margin = large ? { left: 62, top: 24 } : { left: 1, top: 1 };
  const deep = param.shape.length > 2 && dims.sliced < 0;
  const behind = deep ? (large ? 8 : 2) : 0;
  const gap = large ? 22 : 2;
  const total = { w: margin.left + sheets.length * (width + gap) - gap + behind + 2, h: margin.top + height + behind + 2 };
  const picture = svg("svg", { viewBox: `0 0 ${total.w.toFixed(1)} ${total.h.toFixed(1)}`, width: Math.ceil(total.w), height: Math.ceil(total.h),
                               role: "img", "aria-label": describe(param), class: large ? "drawing" : "drawing mini" });
  sheets.forEach((sheet, s) => {
    const left = margin.left + s * (width + gap);
    for (let back = behind; back > 0; back -= behind / 2) {
      picture.append(svg("rect", { x: left + back, y: margin.top + behind - back, width, height, class: "sheet" }));
    }
    const top = margin.top + behind;
    picture.append(svg("rect", { x: left, y: top, width, height, class: "full" }));
    if (param.dims) addCells(picture, cells(param, dims, sheet), { left, top, width, height, large });
    if (large && sheet.label) picture.append(svg("text", { x: left + width / 2, y: margin.top - 9, class: "size" }, sheet.label));
  });
  if (large) addSizes(picture, param, dims, { left: margin.left, top: margin.top + behind, width, height, deep, behind, sliced: sheets.length > 1 });
  return picture;
}

// A small drawing of many shards is one colour with this rank's own: more could not be distinguished.
function addCells(picture, all, box) {
  const few = box.large || all.length <= 16;
  if (!few) picture.append(svg("rect", { x: box.left, y: box.top, width: box.width, height: box.height, class: "many" }));
  for (const cell of all) if (few || cell.mine) addCell(picture, cell, box);
}

function addCell(picture, cell, box) {
  const x = box.left + cell.x * box.width;
  const y = box.top + cell.y * box.height;
  const w = cell.w * box.width;
  const h = cell.h * box.height;
  if (w <= 0 || h <= 0) return;
  picture.append(svg("rect", { x, y, width: w, height: h, fill: cell.color, class: cell.mine ? "shard mine" : "shard" }));
  if (cell.mine && box.large) {
    picture.append(svg("rect", { x: x + 2, y: y + 2, width: Math.max(w - 4, 0), height: Math.max(h - 4, 0), class: "frame" }));
  }
  const text = cell.label.length * 6.4 < w ? cell.label : cell.label.replaceAll(/[a-z_]+ /g, "");
  if (box.large && h >= 13 && text.length * 6.4 < w) {
    picture.append(svg("text", { x: x + w / 2, y: y + h / 2 + 4, fill: inkOn(cell.color), class: "label" }, text));
  }
}

function addSizes(picture, param, dims, box) {
  const size = (d) => "dim " + d + ": " + param.shape[d];
  if (dims.columns >= 0 && !box.sliced) {
    picture.append(svg("text", { x: box.left + box.width / 2 + box.behind, y: box.top - box.behind - 7, class: "size" }, size(dims.columns)));
  }
  if (dims.rows >= 0) {
    picture.append(svg("text", { x: box.left - 6, y: box.top + box.height / 2, class: "size side" }, "dim " + dims.rows + ":"));
    picture.append(svg("text", { x: box.left - 6, y: box.top + box.height / 2 + 14, class: "size side" }, String(param.shape[dims.rows])));
  }
  if (dims.rows < 0 && dims.columns < 0) picture.append(svg("text", { x: box.left + 10, y: box.top - 7, class: "size" }, "one number"));
}
