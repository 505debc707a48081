// The page: one store, one connection, panels that redraw when their section changed.

import { base, pageAddress, showInAddress, shownParams } from "esper/address";
import { drawActions, drawPolicy, drawRounds, drawSeeds, drawSteps } from "esper/charts";
import { Connection } from "esper/connection";
import { EnvPanel } from "esper/envs";
import { byId, el, nth } from "esper/format";
import { EventLog } from "esper/log";
import {
  showAlarms, showBus, showGrowth, showHeads, showLegend, showManifest, showProgress, showResources, showRun,
  showThresholds, showVerdict,
} from "esper/panels";
import { Store } from "esper/store";
import { Theme } from "esper/theme";

const CHART_MS = 1000;
const store = new Store();
let connection = null;
let selected = null;
let theme = null;
let log = null;
const stale = new Set();

const envs = new EnvPanel(store, (envId) => {
  selected = envId;
  showInAddress({ env: envId });
  connection?.send({ select: envId });
});

// Text panels follow every patch; charts follow at most once per second.
function show(changed) {
  const view = store.view;
  if (changed.has("run")) showRun(view.run);
  if (changed.has("thresholds")) showThresholds(view.thresholds);
  showVerdict(view.verdict, store.lastEvent());
  showProgress(view.progress);
  if (changed.has("alarms")) showAlarms(view.alarms, log?.find.bind(log));
  if (changed.has("growth")) showGrowth(view.growth);
  if (changed.has("resources")) showResources(view.resources);
  if (changed.has("bus")) showBus(view.bus, store.rows("rounds"));
  if (changed.has("attention") || changed.has("envs")) envs.show();
  for (const name of changed) stale.add(name);
}

function drawStale() {
  if (store.receivedAt === null || !stale.size || document.hidden) return;
  const rounds = store.rows("rounds");
  if (stale.has("rounds")) {
    drawRounds(rounds);
    drawPolicy(rounds, store.view.thresholds);
    showHeads(rounds, store.view.thresholds);
  }
  if (stale.has("rounds") || stale.has("live_actions")) drawActions(rounds, store.view.live_actions, store.view.progress.round);
  if (stale.has("steps")) drawSteps(store.rows("steps"));
  if (stale.has("seeds")) showSeeds();
  if (stale.has("detail") || stale.has("envs")) envs.showDetail();
  stale.clear();
}

function redrawAll() {
  for (const name of ["rounds", "steps", "seeds", "live_actions", "detail"]) stale.add(name);
  showLegend();
  drawStale();
}

function showSeeds() {
  const seeds = store.rows("seeds");
  const choice = byId("seed-round");
  const rounds = [...new Set(seeds.map((seed) => seed.round))].sort((one, other) => other - one);
  const names = ["newest", ...rounds.map((round) => String(nth(round)))];
  if (choice.dataset.names !== names.join()) {
    const before = choice.value || "newest";
    choice.replaceChildren(...names.map((name) => el("option", { value: name }, name)));
    choice.value = names.includes(before) ? before : "newest";
    choice.dataset.names = names.join();
  }
  const round = choice.value === "newest" ? rounds[0] : Number(choice.value) - 1;
  drawSeeds(seeds.filter((seed) => seed.round === round), store.view.progress?.num_steps);
}

function showState(state) {
  const looks = { connected: "ok", connecting: "unknown", disconnected: "act", ended: "unknown", report: "ok" };
  const words = {
    connected: "✓ connected", connecting: "· connecting", disconnected: "✗ connection lost, trying again",
    ended: "· run ended, server stopped", report: "✓ report",
  };
  const chip = byId("connection");
  chip.className = `chip grade ${looks[state]}`;
  chip.textContent = words[state];
  if (state === "ended") showServeCommand();
}

// The page stays as it is when the server is gone; a reload needs another server.
function showServeCommand() {
  const command = document.querySelector('meta[name="esper-serve-command"]').content;
  byId("again").replaceChildren("The server of this run has stopped. To open the dashboard again: ", el("code", {}, command));
  byId("again").hidden = false;
}

function onKey(event) {
  const isTyping = event.target.matches?.("input, select, textarea");
  if (event.key === "Escape" && isTyping) {
    byId("log-text").value = "";
    byId("log-text").dispatchEvent(new Event("input"));
    event.target.blur();
    return;
  }
  if (isTyping || event.ctrlKey || event.metaKey || event.altKey || byId("help").open) return;
  const actions = {
    j: () => envs.move(1), k: () => envs.move(-1), t: () => theme.toggle(),
    "?": () => byId("help").showModal(), "/": () => byId("log-text").focus(),
    Enter: () => (event.target === document.body || event.target.id === "main" ? envs.open() : null),
  };
  const action = actions[event.key];
  if (!action) return;
  if (event.key === "/" && envs.isOpen) return;
  if (event.key !== "Enter") event.preventDefault();
  action();
}

async function loadManifest() {
  const response = await fetch(`${base()}/api/run${location.search}`);
  showManifest(response.ok ? await response.json() : null);
}

function start() {
  theme = new Theme(redrawAll);
  byId("help-open").addEventListener("click", () => byId("help").showModal());
  byId("help-close").addEventListener("click", () => byId("help").close());
  byId("seed-round").addEventListener("change", showSeeds);
  document.addEventListener("keydown", onKey);
  document.addEventListener("visibilitychange", drawStale);
  window.addEventListener("resize", () => stale.add("detail"));
  setInterval(drawStale, CHART_MS);
  const embedded = byId("embedded-view");
  if (embedded) startReport(JSON.parse(embedded.textContent));
  else startLive();
}

// The env that the address names was open before a reload, or for the one who sent the link.
function openShownEnv() {
  const shown = shownParams().get("env");
  if (shown !== null && store.view.envs[shown]) { envs.mark(Number(shown)); envs.open(); }
}

function startReport(report) {
  showState("report");
  byId("panel-log").remove();
  byId("panel-bus").classList.replace("third", "wide");
  store.isReport = true;
  const changed = store.take(report.view);
  store.details = report.details;
  show(changed);
  showManifest(report.manifest);
  byId("baseline").textContent = report.baseline ?? "";
  drawStale();
}

function startLive() {
  log = new EventLog();
  byId("runs-link").href = pageAddress("/runs");
  byId("runs-link").hidden = false;
  connection = new Connection(`${base()}/ws/view`, {
    onState: showState,
    hello: () => { if (selected !== null) connection.send({ select: selected }); },
    onMessage: (data) => {
      const isFirst = store.receivedAt === null;
      show(store.take(JSON.parse(data)));
      if (!isFirst) return;
      drawStale();
      openShownEnv();
    },
  });
  log.connect();
  loadManifest();
  setInterval(() => {
    const node = byId("last-event");
    if (node) node.textContent = store.lastEvent();
  }, CHART_MS);
}

start();
