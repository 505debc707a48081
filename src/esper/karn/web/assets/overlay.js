// Several runs in the same charts: curves with smoothing, what differs in configuration, counts.

import { byId, compact, el, isMissing, nth, number, signed, table } from "esper/format";
import { draw, layout, lineMode, plain, theme } from "esper/plots";

export const X_AXES = {
  round: ["round", (point) => nth(point.round)],
  step: ["env steps", (point) => point.env_steps],
  wall: ["time in rounds, s", (point) => point.wall_s],
  flop: ["training GFLOP of the hosts, estimated", (point) => point.gflop],
};
const CHARTS = {
  accuracy: ["accuracy, %", (point) => point.accuracy_pct],
  return: ["task return", (point) => point.task_return],
  reward: ["reward", (point) => point.reward],
};
// Told apart by colour and by dashes; legible on both backgrounds.
const COLOURS = ["#2f9be0", "#e08a1e", "#2fae75", "#d9629c", "#9a7be8", "#b3911f", "#d9604c", "#2aa6b3", "#7f93a6", "#8aa52f", "#c06ad9", "#b07a5a"];
const DASHES = ["solid", "dash", "dot", "dashdot"];

export function lookOf(index) {
  return { color: COLOURS[index % COLOURS.length], dash: DASHES[Math.floor(index / 3) % DASHES.length] };
}

export function labelOf(run) {
  return run.name ?? run.run_id ?? run.directory;
}

// Runs may share a name; what is drawn must not.
export function labelsOf(runs) {
  const labels = runs.map(labelOf);
  return runs.map((run, index) => {
    const isShared = labels.filter((label) => label === labels[index]).length > 1;
    return isShared && run.run_id !== labels[index] ? `${labels[index]} ${run.run_id ?? run.directory}` : labels[index];
  });
}

// An exponential moving average that does not begin at zero; gaps stay gaps.
export function smoothed(values, weight) {
  let last = 0;
  let count = 0;
  return values.map((value) => {
    if (isMissing(value)) return null;
    count += 1;
    last = weight * last + (1 - weight) * value;
    return last / (1 - weight ** count);
  });
}

export function drawOverlay(runs, xName, weight) {
  const labels = labelsOf(runs);
  for (const name of Object.keys(CHARTS)) drawChart(name, runs, labels, xName, weight);
  const [xTitle, xOf] = X_AXES[xName];
  const without = runs.filter((run) => run.points.length && !run.points.some((point) => !isMissing(xOf(point))));
  const notes = [
    ...without.map((run) => `${labels[runs.indexOf(run)]} has no ${xTitle}`),
    ...runs.filter((run) => run.problem).map((run) => `${labels[runs.indexOf(run)]}: ${run.problem}`),
    ...runs.filter((run) => !run.is_read).map((run) => `${labels[runs.indexOf(run)]} is still being read`),
  ];
  byId("overlay-note").textContent = notes.join("; ");
}

function drawChart(name, runs, labels, xName, weight) {
  const colors = theme();
  const [title, yOf] = CHARTS[name];
  const [xTitle, xOf] = X_AXES[xName];
  const words = [];
  const traces = runs.flatMap((run, index) => {
    const points = run.points.filter((point) => !isMissing(xOf(point)));
    const x = points.map(xOf);
    const raw = points.map(yOf);
    const line = { ...lookOf(index), width: 2 };
    const label = plain(labels[index]);
    const curve = { x, type: "scatter", mode: lineMode(x.length), marker: { size: 5, color: line.color }, connectgaps: false, legendgroup: label };
    words.push(`${labels[index]} ${number(raw.findLast((value) => !isMissing(value)), 2)}`);
    const hovertemplate = `${label} %{y:.2f}<extra></extra>`;
    if (!weight) return [{ ...curve, y: raw, name: label, line, hovertemplate }];
    return [
      { ...curve, y: raw, name: `${label} as measured`, mode: "lines", line: { ...line, width: 1 }, opacity: 0.3, showlegend: false, hoverinfo: "skip" },
      { ...curve, y: smoothed(raw, weight), name: label, line, mode: "lines", hovertemplate },
    ];
  });
  draw(`chart-${name}`, traces, layout(colors, {
    // A zoom holds for an axis: another x is another chart.
    uirevision: xName, showlegend: true, hovermode: "closest",
    legend: { orientation: "h", y: -0.24, x: 0, font: { size: 11 }, bgcolor: "rgba(0,0,0,0)" }, margin: { l: 48, r: 10, t: 8, b: 20 },
    xaxis: { title: { text: xTitle, standoff: 6 } }, yaxis: { title: { text: title } },
  }), `${title} over ${xTitle}: ${words.join(", ") || "no run is chosen"}`);
}

export function showDifferences(overlay) {
  const labels = labelsOf(overlay.runs);
  byId("config-empty").hidden = overlay.config.length > 0;
  byId("config-empty").textContent = overlay.runs.length < 2 ? "Choose two runs or more." : "Their configurations are equal.";
  byId("config-table").hidden = overlay.config.length === 0;
  table(byId("config-table"), ["key", ...labels], overlay.config.map((row) => [row.key, ...row.values.map((value, index) => {
    const isOther = index > 0 && value !== row.values[0];
    return el("td", { class: isOther ? "text differs" : "text" }, isMissing(value) ? "not known" : value);
  })]));
}

export function showCounts(runs) {
  const labels = labelsOf(runs);
  const types = [...new Set(runs.flatMap((run) => Object.keys(run.counts)))].sort();
  const countOf = (run, type) => run.counts[type] ?? 0;
  const differing = types.filter((type) => runs.some((run) => countOf(run, type) !== countOf(runs[0], type)));
  const isShown = runs.length > 1 && differing.length > 0;
  byId("counts-table").hidden = !isShown;
  byId("counts-empty").textContent = runs.length < 2 ? "Choose two runs or more." : `${differing.length} of ${types.length} event types differ in number.`;
  table(byId("counts-table"), ["event type", ...labels], differing.map((type) => [type, ...runs.map((run, index) => {
    const count = countOf(run, type);
    const delta = count - countOf(runs[0], type);
    return el("td", { class: index > 0 && delta ? "differs" : null }, String(count), index > 0 && delta ? el("small", {}, ` ${signed(delta, 0)}`) : null);
  })]));
}

export function showResults(runs, rows) {
  const labels = labelsOf(runs);
  byId("result-table").hidden = runs.length === 0;
  table(byId("result-table"), ["run", "state", "rounds", "accuracy, %", "task return", "GFLOP"], runs.map((run, index) => {
    const row = rows.find((other) => other.directory === run.directory);
    const last = run.points.at(-1);
    const mark = el("i", { class: "swatch", "aria-hidden": "true" });
    mark.style.borderTop = `3px ${{ solid: "solid", dash: "dashed", dot: "dotted", dashdot: "dashed" }[lookOf(index).dash]} ${lookOf(index).color}`;
    return [el("span", {}, mark, labels[index]), row?.state ?? "", String(run.points.length ? nth(last.round) : 0), number(last?.accuracy_pct), number(last?.task_return), compact(last?.gflop)];
  }));
}
