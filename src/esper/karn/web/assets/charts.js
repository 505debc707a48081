// Charts, drawn by the plotly.js of the installed package. Each one also says in words what it shows.

import { STAGES, byId, compact, isMissing, nth, number, signed, stageColor } from "esper/format";
import { draw, layout, lineMode, plain, theme } from "esper/plots";

const OPS = ["WAIT", "GERMINATE", "SET_ALPHA_TARGET", "PRUNE", "FOSSILIZE", "ADVANCE"];
const OP_LOOKS = {
  WAIT: ["#8d9caa", ""], GERMINATE: ["#bd9bff", "/"], SET_ALPHA_TARGET: ["#f5bd52", "x"],
  PRUNE: ["#ff8a80", "\\"], FOSSILIZE: ["#62d39b", "."], ADVANCE: ["#5ed3e3", "-"],
};
const MAX_SEED_ROWS = 24;
const FATES = { fossilized: "✓", pruned: "✗", growing: "…", ended: "○" };

function band(x, low, high, color) {
  const known = x.map((_, index) => index).filter((index) => !isMissing(low[index]) && !isMissing(high[index]));
  const line = { width: 0 };
  const common = { mode: "lines", line, hoverinfo: "skip", type: "scatter" };
  return [
    { ...common, name: "highest", x: known.map((index) => x[index]), y: known.map((index) => high[index]) },
    { ...common, name: "lowest", x: known.map((index) => x[index]), y: known.map((index) => low[index]), fill: "tonexty", fillcolor: color },
  ];
}

// Rounds and steps are whole and begin with one: over a short range plotly would mark halves, and
// before the first it would mark a zero. Where there is none yet, there is nothing to mark.
function counting(xs) {
  if (!xs.length) return { showticklabels: false };
  const [first, last] = [xs[0], xs.at(-1)];
  return { tickformat: "d", range: [first - 0.5, last + 0.5], ...(last - first < 6 ? { dtick: 1 } : {}) };
}

function series(id, rows, x, names, { color, fill, unit, axisTitle, subject }) {
  const colors = theme();
  const xs = rows.map((row) => nth(row[x]));
  const mean = rows.map((row) => row[names.mean]);
  const traces = [
    ...band(xs, rows.map((row) => row[names.low]), rows.map((row) => row[names.high]), colors[fill]),
    { x: xs, y: mean, mode: lineMode(xs.length), type: "scatter", name: "mean", connectgaps: false, line: { color: colors[color], width: 2 }, marker: { size: 5 }, customdata: rows.map(events), hovertemplate: `%{y:.2f}${unit}%{customdata}<extra></extra>` },
  ];
  if (names.dotted) {
    const [field, name] = names.dotted;
    traces.push({ x: xs, y: rows.map((row) => row[field]), mode: "lines", type: "scatter", name, line: { color: colors.muted, width: 1, dash: "dot" }, hovertemplate: `${name} %{y:.2f}${unit}<extra></extra>` });
  }
  const last = rows.findLast((row) => !isMissing(row[names.mean]));
  const words = last
    ? `${subject}: ${number(last[names.mean])}${unit} in ${x} ${nth(last[x])}, from ${number(last[names.low])} to ${number(last[names.high])} over envs`
    : `${subject}: nothing measured yet`;
  draw(id, traces, layout(colors, { xaxis: { title: { text: x }, ...counting(xs) }, yaxis: { title: { text: axisTitle } } }), words);
}

// What happened in a round, for those who hover over it; steps have none of it.
function events(row) {
  const parts = [[row.num_fossilized, "kept"], [row.num_pruned, "pruned"], [row.num_rollbacks, "rollbacks"], [row.num_failed, "envs failed"]];
  return parts.filter(([count]) => count).map(([count, what]) => `<br>${count} ${what}`).join("");
}

export function drawRounds(rows) {
  const done = rows.filter((row) => !isMissing(row.mean_reward) || !isMissing(row.mean_accuracy_pct));
  series("chart-accuracy", done, "round",
    { mean: "mean_accuracy_pct", low: "low_accuracy_pct", high: "high_accuracy_pct", dotted: ["rolling_accuracy_pct", "rolling"] },
    { color: "accent", fill: "band", unit: " %", axisTitle: "accuracy, %", subject: "Accuracy per round" });
  series("chart-reward", done, "round", { mean: "mean_reward", low: "low_reward", high: "high_reward", dotted: ["mean_task_return", "task return"] },
    { color: "second", fill: "bandSecond", unit: "", axisTitle: "reward", subject: "Reward per round" });
}

export function drawSteps(rows) {
  series("chart-steps", rows, "step", { mean: "mean_accuracy_pct", low: "low_accuracy_pct", high: "high_accuracy_pct" },
    { color: "accent", fill: "band", unit: " %", axisTitle: "accuracy, %", subject: "Accuracy of this round" });
}

export function drawActions(rows, live, liveRound) {
  const mixes = rows.filter((row) => row.actions).map((row) => [String(nth(row.round)), row.actions]);
  if (live && Object.keys(live.counts).length && !mixes.some(([round]) => round === String(nth(liveRound)))) {
    mixes.push([`${nth(liveRound)} now`, live]);
  }
  const shown = mixes.slice(-40);
  const totals = shown.map(([, mix]) => Object.values(mix.counts).reduce((sum, count) => sum + count, 0) || 1);
  const colors = theme();
  const traces = OPS.map((op) => ({
    type: "bar", name: op.toLowerCase().replaceAll("_", " "), x: shown.map(([round]) => round),
    y: shown.map(([, mix], index) => (100 * (mix.counts[op] ?? 0)) / totals[index]),
    customdata: shown.map(([, mix]) => [mix.counts[op] ?? 0, mix.successes[op] ?? 0]),
    marker: { color: OP_LOOKS[op][0], pattern: { shape: OP_LOOKS[op][1], fgcolor: "#0d1217", fillmode: "overlay", size: 6, solidity: 0.25 } },
    hovertemplate: "%{y:.0f} % (%{customdata[0]}, %{customdata[1]} succeeded)",
  }));
  const last = shown.at(-1);
  const words = last ? `Action mix of round ${last[0]}: ` + OPS.map((op) => `${op} ${last[1].counts[op] ?? 0}`).join(", ") : "No action yet";
  draw("chart-actions", traces, layout(colors, {
    barmode: "stack", bargap: 0.15, showlegend: true,
    legend: { orientation: "h", y: -0.22, x: 0, font: { size: 11 }, bgcolor: "rgba(0,0,0,0)" },
    margin: { l: 44, r: 10, t: 8, b: 20 },
    xaxis: { type: "category", nticks: 12 }, yaxis: { title: { text: "share, %" }, range: [0, 100] },
  }), words);
}

const POLICY = [["kl_divergence", "KL"], ["clip_fraction", "clip fraction"], ["value_nrmse", "value error"], ["gradient_norm", "gradient norm"]];

export function drawPolicy(rows, thresholds) {
  const updates = rows.filter((row) => row.policy);
  const colors = theme();
  const x = updates.map((row) => nth(row.round));
  const look = { grid: { rows: 2, columns: 2, pattern: "independent", ygap: 0.55, xgap: 0.22 }, annotations: [], shapes: [], margin: { l: 40, r: 8, t: 22, b: 24 }, hovermode: "closest" };
  const traces = POLICY.map(([name, label], index) => {
    const suffix = index ? String(index + 1) : "";
    const watch = thresholds?.[name]?.watch;
    look[`xaxis${suffix}`] = { ...counting(x), nticks: 5, tickfont: { size: 10 } };
    look[`yaxis${suffix}`] = { rangemode: "tozero", nticks: 4, tickfont: { size: 10 } };
    look.annotations.push({ text: label, showarrow: false, xref: `x${suffix} domain`, yref: `y${suffix} domain`, x: 0, y: 1.32, xanchor: "left", font: { size: 11, color: colors.text } });
    if (!isMissing(watch)) {
      look.shapes.push({ type: "line", xref: `x${suffix} domain`, yref: `y${suffix}`, x0: 0, x1: 1, y0: watch, y1: watch, line: { color: colors.watch, width: 1, dash: "dash" } });
    }
    return { name: label, x, y: updates.map((row) => row.policy[name]), xaxis: `x${suffix}`, yaxis: `y${suffix}`, type: "scatter", mode: lineMode(x.length), marker: { size: 4 }, line: { color: colors.accent, width: 1.5 }, hovertemplate: `${label} %{y:.4g}, round %{x}<extra></extra>` };
  });
  const last = updates.at(-1);
  const words = last ? `Policy health in round ${nth(last.round)}: ` + POLICY.map(([name, label]) => `${label} ${compact(last.policy[name])}`).join(", ") : "No policy update yet";
  draw("chart-policy", traces, layout(colors, look), words);
}

// Rows are seeds of one round; each stretch is a bar that carries its stage's name.
export function drawSeeds(seeds, numSteps) {
  const shown = seeds.slice(-MAX_SEED_ROWS);
  const labels = shown.map((seed, index) => plain(`${FATES[seed.fate] ?? ""} env ${seed.env_id} ${seed.slot_id} ${seed.blueprint}`) + "\u200b".repeat(index));
  const byStage = new Map();
  shown.forEach((seed, index) => {
    seed.stages.forEach(([stage, first], position) => {
      const end = Math.max(seed.stages[position + 1]?.[1] ?? seed.last_step + 1, first);
      if (!byStage.has(stage)) byStage.set(stage, { y: [], x: [], base: [], text: [], custom: [] });
      const rows = byStage.get(stage);
      const width = Math.max(end - first, stage === "PRUNED" ? 0.35 : 0.15);
      rows.y.push(labels[index]);
      rows.x.push(width);
      rows.base.push(first + 0.5); // step n stands around n, as in the other charts
      rows.text.push(width >= 2 ? STAGES[stage] : "");
      rows.custom.push([nth(first), Math.max(end, nth(first)), isMissing(seed.contribution_pp) ? "contribution not measured" : `contribution ${signed(seed.contribution_pp)} pp, ${compact(seed.num_params)} parameters`, seed.fate + (seed.reason ? `, ${plain(seed.reason)}` : "")]);
    });
  });
  const colors = theme();
  const traces = [...byStage].map(([stage, rows]) => ({
    type: "bar", orientation: "h", name: stage.toLowerCase(), y: rows.y, x: rows.x, base: rows.base, customdata: rows.custom,
    text: rows.text, textposition: "inside", insidetextanchor: "middle", textangle: 0, textfont: { color: "#0d1217", size: 10 },
    marker: { color: stageColor(stage), line: { color: colors.panel, width: 1 } },
    hovertemplate: `${stage.toLowerCase()}, steps %{customdata[0]} to %{customdata[1]}<br>%{customdata[2]}<br>%{customdata[3]}<extra></extra>`,
  }));
  const count = (fate) => seeds.filter((seed) => seed.fate === fate).length;
  const fates = [["fossilized", "fossilized"], ["pruned", "pruned"], ["growing", "growing"], ["ended", "unfinished at the end of the episode"]];
  const counted = fates.map(([fate, label]) => `${count(fate)} ${label}`).join(", ");
  const words = seeds.length ? `${seeds.length} ${seeds.length === 1 ? "seed" : "seeds"}: ${counted}` : "No seed in this round";
  byId("seeds-more").textContent = seeds.length > shown.length ? `${words}; the newest ${shown.length} are drawn` : words;
  const height = Math.max(90, 50 + 19 * shown.length);
  byId("chart-seeds").style.height = `${height}px`;
  draw("chart-seeds", traces, layout(colors, {
    // Without it plotly keeps the height that it measured first, and covers what is below.
    height,
    // Another round is another chart: it begins without a zoom.
    uirevision: `round ${shown[0]?.round}`,
    barmode: "overlay", bargap: 0.2, hovermode: "closest", margin: { l: 10, r: 10, t: 4, b: 34 },
    xaxis: { title: { text: "step" }, ...counting([1, numSteps || 1]) },
    yaxis: { type: "category", categoryorder: "array", categoryarray: [...labels].reverse(), tickfont: { size: 11 }, automargin: true, tickmode: "array", tickvals: labels, ticktext: labels },
  }), words);
}

export function drawEnv(detail) {
  const colors = theme();
  const last = detail.accuracies_pct.at(-1);
  const steps = detail.steps.map(nth);
  draw("chart-env", [
    { x: steps, y: detail.rewards, type: "bar", name: "reward", yaxis: "y2", marker: { color: colors.second, opacity: 0.55 }, hovertemplate: "reward %{y:.2f}" },
    { x: steps, y: detail.accuracies_pct, type: "scatter", mode: lineMode(steps.length), name: "accuracy", line: { color: colors.accent, width: 2 }, marker: { size: 4 }, hovertemplate: "%{y:.2f} %" },
  ], layout(colors, {
    showlegend: true, legend: { orientation: "h", y: 1.16, x: 0, bgcolor: "rgba(0,0,0,0)" }, margin: { l: 46, r: 46, t: 22, b: 36 },
    uirevision: `episode ${detail.episode_id} of env ${detail.env_id}`,
    xaxis: { title: { text: "step" }, ...counting(steps) }, yaxis: { title: { text: "accuracy, %" } },
    yaxis2: { title: { text: "reward" }, overlaying: "y", side: "right", showgrid: false, tickmode: "auto", nticks: 5 },
  }), isMissing(last) ? "No accuracy measured yet" : `Accuracy ${number(last)} % in step ${steps.at(-1)}`);
}

export function drawWaterfall(components) {
  const colors = theme();
  const terms = Object.entries(components).sort((one, other) => Math.abs(other[1]) - Math.abs(one[1]));
  const total = terms.reduce((sum, [, value]) => sum + value, 0);
  draw("chart-waterfall", [{
    type: "waterfall", x: [...terms.map(([name]) => name.replaceAll("_", " ")), "total"],
    y: [...terms.map(([, value]) => value), total], measure: [...terms.map(() => "relative"), "total"],
    text: [...terms.map(([, value]) => signed(value)), signed(total)], textposition: "outside", cliponaxis: false,
    increasing: { marker: { color: colors.ok } }, decreasing: { marker: { color: colors.act } }, totals: { marker: { color: colors.accent } },
    connector: { line: { color: colors.line } }, hovertemplate: "%{x} %{text}<extra></extra>",
  }], layout(colors, { margin: { l: 44, r: 10, t: 22, b: 60 }, hovermode: "closest" }),
  terms.length ? `Reward ${signed(total)}: ` + terms.map(([name, value]) => `${name} ${signed(value)}`).join(", ") : "No reward yet");
}

export function drawWorth(detail) {
  const colors = theme();
  const slots = [...new Set([...Object.keys(detail.contributions_pp), ...Object.keys(detail.shapley_pp)])].sort();
  const bars = (values, name, color, shape) => ({
    type: "bar", name, x: slots.map(plain), y: slots.map((slot) => values[slot] ?? null), marker: { color, pattern: { shape, fgcolor: colors.panel, fillmode: "overlay", size: 6, solidity: 0.3 } },
    text: slots.map((slot) => (isMissing(values[slot]) ? "" : signed(values[slot]))), textposition: "outside", cliponaxis: false, hovertemplate: `${name} %{y:.2f} pp<extra></extra>`,
  });
  const isMeasured = slots.some((slot) => !isMissing(detail.contributions_pp[slot]) || !isMissing(detail.shapley_pp[slot]));
  const traces = [bars(detail.contributions_pp, "leave one out", colors.accent, "")];
  if (Object.keys(detail.shapley_pp).length) traces.push(bars(detail.shapley_pp, "Shapley", colors.second, "/"));
  const words = slots.length ? slots.map((slot) => `${slot} ${isMissing(detail.contributions_pp[slot]) ? "not measured" : signed(detail.contributions_pp[slot]) + " pp"}`).join(", ") : "No active seed";
  draw("chart-worth", traces, layout(colors, {
    showlegend: traces.length > 1, legend: { orientation: "h", y: 1.2, x: 0, bgcolor: "rgba(0,0,0,0)" }, margin: { l: 44, r: 10, t: 26, b: 30 },
    hovermode: "closest", yaxis: { title: { text: "percentage points" } },
    annotations: isMeasured ? [] : [{ text: slots.length ? "not measured yet" : "no active seed", showarrow: false, xref: "paper", yref: "paper", x: 0.5, y: 0.5, font: { color: colors.muted } }],
  }), words);
}
