// Main: the page's controls and keys, and the first drawing.

const themes = ["auto", "light", "dark"];
function setTheme(theme) {
  if (theme === "auto") document.documentElement.removeAttribute("data-theme");
  else document.documentElement.setAttribute("data-theme", theme);
  byId("theme").textContent = "Theme: " + theme;
  try { localStorage.setItem("moonshard-theme", theme); } catch { /* a page from a file may have no store */ }
}
function storedTheme() {
  try { return themes.find((theme) => theme === localStorage.getItem("moonshard-theme")) || "auto"; } catch { return "auto"; }
}

function setRank(rank) {
  if (!Number.isInteger(rank) || rank < 0 || rank >= data.world) return;
  state.rank = rank;
  byId("rank").value = rank;
  renderTree(false);
  if (!data.failed) renderMemory();
}

function search(text) {
  state.query = text;
  state.limit = 400;
  renderTree(false);
}

function pageKey(event) {
  if (event.ctrlKey || event.altKey || event.metaKey) return;
  const typing = event.target.matches("input, select, textarea");
  if (event.key === "Escape" && (state.query !== "" || event.target === byId("search"))) {
    byId("search").value = "";
    search("");
    focusRow();
  } else if (typing) {
    if (event.key === "Enter" && event.target === byId("search")) focusRow();
    if (event.key === "ArrowDown" && event.target === byId("search")) { focusRow(); event.preventDefault(); }
    return;
  } else if (event.key === "/") {
    byId("search").focus();
    byId("search").select();
  } else if (event.key === "[" || event.key === "]") {
    const focused = byId("tree").contains(document.activeElement);
    setRank(state.rank + (event.key === "]" ? 1 : -1));
    if (focused) focusRow();
  } else {
    return;
  }
  event.preventDefault();
}

function unfoldAll() {
  for (const entry of allEntries().slice(0, 5000)) state.expanded.add(entry.key);
  for (const key of [...state.expanded]) if (key.startsWith("-")) state.expanded.delete(key);
  renderTree(true);
}

function listen() {
  byId("tree").addEventListener("keydown", treeKey);
  document.addEventListener("keydown", pageKey);
  byId("search").addEventListener("input", (event) => search(event.target.value.trim()));
  byId("filter").addEventListener("change", (event) => { state.filter = event.target.value; renderTree(false); });
  byId("expand").addEventListener("click", unfoldAll);
  byId("collapse").addEventListener("click", () => { state.expanded.clear(); renderTree(true); });
  byId("rank").addEventListener("change", (event) => setRank(event.target.valueAsNumber));
  byId("theme").addEventListener("click", () => {
    const now = document.documentElement.getAttribute("data-theme") || "auto";
    setTheme(themes[(themes.indexOf(now) + 1) % themes.length]);
  });
  byId("print").addEventListener("click", () => window.print());
  for (const id of ["batch", "sequence"]) {
    byId(id).addEventListener("change", (event) => {
      if (event.target.valueAsNumber >= 1) state[id] = event.target.valueAsNumber;
      renderCalls();
    });
  }
}

setTheme(storedTheme());
renderHead();
unfoldFirst();
renderTree(false);
if (data.failed) {
  renderFailed();
} else {
  renderCards();
  renderMemory();
  renderCalls();
}
renderRules();
renderFindings();
listen();
