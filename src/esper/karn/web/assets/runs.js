// The page with the list of runs: filter, sort, open, choose several and lay their curves over each other.

import { pageAddress, showInAddress, shownParams } from "esper/address";
import { MISSING, byId, el, isMissing, number, signed } from "esper/format";
import { X_AXES, drawOverlay, labelOf, showCounts, showDifferences, showResults } from "esper/overlay";
import { Theme } from "esper/theme";

const LIST_MS = 5000;
const UNREAD_MS = 300;
const GROWING_MS = 4000;
const MAX_CHOSEN = 12;
const STATE_LOOKS = { running: "ok", completed: "ok", failed: "act", killed: "watch", interrupted: "watch", empty: "unknown" };

// What a column shows, and what it is sorted by; runs without it come last.
const COLUMNS = {
  run: [(row) => openLink(row), (row) => labelOf(row).toLowerCase(), 1],
  task: [(row) => row.task ?? MISSING, (row) => row.task, 1],
  controller: [(row) => row.controller ?? MISSING, (row) => row.controller, 1],
  state: [(row) => el("span", { class: `grade ${STATE_LOOKS[row.state] ?? "unknown"}` }, row.state), (row) => row.state, 1],
  rounds: [(row) => `${row.rounds_completed}/${row.num_rounds ?? MISSING}`, (row) => row.rounds_completed, -1],
  accuracy: [(row) => number(row.accuracy_pct, 1, " %"), (row) => row.accuracy_pct, -1],
  return: [(row) => signed(row.task_return), (row) => row.task_return, -1],
  verdict: [(row) => row.verdict ?? "", (row) => row.verdict, 1],
  tags: [(row) => tagsOf(row), (row) => tagsOf(row) || null, 1],
  age: [(row) => ageOf(row.age_s), (row) => row.age_s, 1],
};
const WORDY = ["run", "task", "controller", "state", "verdict", "tags"];

let list = { rows: [] };
let overlay = { runs: [], config: [] };
let request = null;
let timer = null;
const shown = {};

function readAddress() {
  const params = shownParams();
  shown.runs = [...new Set(params.getAll("run"))].slice(0, MAX_CHOSEN);
  shown.x = params.get("x") in X_AXES ? params.get("x") : "round";
  shown.smooth = Math.min(Math.max(Number(params.get("smooth")) || 0, 0), 0.98);
  shown.filter = params.get("filter") ?? "";
  shown.sort = params.get("sort") in COLUMNS ? params.get("sort") : "age";
  shown.isReversed = params.get("reverse") === "1";
  byId("x-axis").value = shown.x;
  byId("smooth").value = shown.smooth;
  byId("smooth-value").textContent = shown.smooth.toFixed(2);
  if (byId("runs-filter").value !== shown.filter) byId("runs-filter").value = shown.filter;
}

function change(values) {
  showInAddress(values);
  readAddress();
}

function ageOf(seconds) {
  if (isMissing(seconds)) return MISSING;
  for (const [unit, length] of [["d", 86400], ["h", 3600], ["min", 60]]) {
    if (seconds >= length) return `${Math.floor(seconds / length)} ${unit}`;
  }
  return `${Math.floor(seconds)} s`;
}

function tagsOf(row) {
  return Object.entries(row.tags).map(([key, value]) => `${key}=${value}`).sort().join(" ");
}

function openLink(row) {
  const path = row.directory === list.own ? "/" : `/run/${encodeURIComponent(row.directory)}/`;
  return el("a", { href: pageAddress(path), title: row.directory }, labelOf(row));
}

// Words must all occur; KEY=VALUE compares one column or tag, as on the command line.
function fits(row, words) {
  const text = [row.run_id, row.name, row.directory, row.task, row.controller, row.engine, row.state, row.group, row.verdict, tagsOf(row)].join(" ").toLowerCase();
  return words.every((word) => {
    const [key, value] = word.split("=", 2);
    if (value === undefined) return text.includes(word);
    const known = { id: row.run_id, seed: row.seed, ...row.tags, ...row };
    return String(known[key] ?? "").toLowerCase() === value;
  });
}

function wantedRows() {
  const words = shown.filter.toLowerCase().split(/\s+/).filter(Boolean);
  const [, keyOf, order] = COLUMNS[shown.sort];
  const rows = list.rows.filter((row) => fits(row, words));
  const side = shown.isReversed ? -order : order;
  const compare = (one, other) => (one < other ? -1 : one > other ? 1 : 0);
  const known = rows.filter((row) => !isMissing(keyOf(row)));
  const unknown = rows.filter((row) => isMissing(keyOf(row)));
  return [...known.sort((one, other) => side * compare(keyOf(one), keyOf(other))), ...unknown];
}

function showList() {
  const rows = wantedRows();
  const chosen = new Set(shown.runs);
  const focused = document.activeElement?.dataset?.focus;
  const head = el("tr", {}, el("th", { scope: "col", "aria-label": "show" }), ...Object.keys(COLUMNS).map(headOf));
  byId("runs-table").replaceChildren(el("thead", {}, head), el("tbody", {}, ...rows.map((row) => rowOf(row, chosen))));
  if (focused) document.querySelector(`[data-focus="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
  const unread = list.num_unread ? `, ${list.num_unread} still being read` : "";
  const left = list.num_runs > list.rows.length + (list.num_unread ?? 0) ? `, the newest of ${list.num_runs}` : "";
  byId("runs-note").textContent = `${rows.length} of ${list.rows.length} runs${left}${unread}`;
  byId("runs-clear").hidden = chosen.size === 0;
}

function headOf(name) {
  const isSorted = shown.sort === name;
  const button = el("button", { type: "button", class: "sort", "data-focus": `sort ${name}` }, name, isSorted ? (shown.isReversed ? " ▴" : " ▾") : "");
  button.addEventListener("click", () => {
    change({ sort: name === "age" ? "" : name, reverse: isSorted && !shown.isReversed ? "1" : "" });
    showList();
  });
  return el("th", { scope: "col", class: WORDY.includes(name) ? "text" : null, "aria-sort": isSorted ? (shown.isReversed ? "descending" : "ascending") : null }, button);
}

function rowOf(row, chosen) {
  const isChosen = chosen.has(row.directory);
  const box = el("input", { type: "checkbox", "aria-label": `show ${labelOf(row)}`, "data-focus": `show ${row.directory}` });
  box.checked = isChosen;
  box.disabled = !isChosen && chosen.size >= MAX_CHOSEN;
  box.addEventListener("change", () => choose(row.directory, box.checked));
  const cells = Object.entries(COLUMNS).map(([name, [show]]) =>
    el(name === "run" ? "th" : "td", { scope: name === "run" ? "row" : null, class: WORDY.includes(name) ? "text" : null }, show(row)));
  return el("tr", { class: isChosen ? "chosen" : null }, el("td", {}, box), ...cells);
}

function choose(directory, isChosen) {
  const others = shown.runs.filter((name) => name !== directory);
  change({ run: isChosen ? [...others, directory] : others });
  showList();
  loadOverlay();
}

async function fetched(path, params, signal) {
  const query = new URLSearchParams([...new URLSearchParams(location.search), ...params]);
  const response = await fetch(`${path}?${query}`, { signal });
  if (!response.ok) throw new Error(await response.text());
  return response.json();
}

async function loadList() {
  let pause = LIST_MS;
  try {
    list = await fetched("/api/runs", []);
    showState("ok", "✓ connected");
    byId("run-title").textContent = `Runs in ${list.directory}`;
    document.title = `Esper · runs in ${list.directory}`;
    if (list.num_unread) pause = UNREAD_MS;
    showList();
    showResults(overlay.runs, list.rows);
  } catch {
    showState("act", "✗ connection lost, trying again");
  }
  setTimeout(loadList, pause);
}

function showState(grade, words) {
  byId("connection").className = `chip grade ${grade}`;
  byId("connection").textContent = words;
}

async function loadOverlay() {
  request?.abort();
  clearTimeout(timer);
  request = new AbortController();
  byId("overlay-empty").hidden = shown.runs.length > 0;
  byId("overlay-problem").textContent = "";
  if (shown.runs.length === 0) return showOverlay({ runs: [], config: [] });
  let pause = GROWING_MS;
  try {
    const answer = await fetched("/api/runs/overlay", shown.runs.map((name) => ["run", name]), request.signal);
    showOverlay(answer);
    if (answer.runs.some((run) => !run.is_read)) pause = UNREAD_MS;
    else if (!isGrowing(answer)) return;
  } catch (error) {
    if (error.name === "AbortError") return;
    byId("overlay-problem").textContent = error.message.trim();
  }
  timer = setTimeout(loadOverlay, pause);
}

function isGrowing(answer) {
  const states = new Map(list.rows.map((row) => [row.directory, row.state]));
  return answer.runs.some((run) => ["running", undefined].includes(states.get(run.directory)));
}

function showOverlay(answer) {
  overlay = answer;
  byId("overlay-charts").hidden = overlay.runs.length === 0;
  redraw();
  showDifferences(overlay);
  showCounts(overlay.runs);
  showResults(overlay.runs, list.rows);
}

function redraw() {
  if (overlay.runs.length) drawOverlay(overlay.runs, shown.x, shown.smooth);
}

function start() {
  readAddress();
  const theme = new Theme(redraw);
  byId("x-axis").addEventListener("change", () => { change({ x: byId("x-axis").value === "round" ? "" : byId("x-axis").value }); redraw(); });
  byId("smooth").addEventListener("input", () => { change({ smooth: Number(byId("smooth").value) ? byId("smooth").value : "" }); redraw(); });
  byId("runs-filter").addEventListener("input", () => { change({ filter: byId("runs-filter").value.trim() ? byId("runs-filter").value : "" }); showList(); });
  byId("filter-form").addEventListener("submit", (event) => event.preventDefault());
  byId("runs-clear").addEventListener("click", () => { change({ run: [] }); showList(); loadOverlay(); });
  window.addEventListener("hashchange", () => {
    const before = shown.runs.join("\n");
    readAddress();
    showList();
    if (shown.runs.join("\n") !== before) loadOverlay();
    else redraw();
  });
  document.addEventListener("keydown", (event) => {
    const isTyping = event.target.matches?.("input[type=search], select");
    if (event.ctrlKey || event.metaKey || event.altKey || isTyping) return;
    if (event.key === "t") theme.toggle();
    if (event.key === "/") { event.preventDefault(); byId("runs-filter").focus(); }
  });
  loadList();
  loadOverlay();
}

start();
