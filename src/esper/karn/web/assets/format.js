// Numbers, times and elements. Everything from a run enters the page as text, never as markup.

export const MISSING = "—";
export const GRADES = {
  ok: { sign: "✓", word: "ok" },
  watch: { sign: "▲", word: "watch" },
  act: { sign: "✗", word: "act" },
  unknown: { sign: "·", word: "not measured" },
};

export function isMissing(value) {
  return value === null || value === undefined;
}

// Events count rounds and steps from zero, people from one.
export function nth(index) {
  return isMissing(index) ? MISSING : index + 1;
}

export function number(value, digits = 2, unit = "") {
  return isMissing(value) ? MISSING : value.toFixed(digits) + unit;
}

export function compact(value) {
  if (isMissing(value)) return MISSING;
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e6) return (value / 1e6).toFixed(1) + " M";
  if (size >= 1e4) return (value / 1e3).toFixed(1) + " k";
  if (size >= 100 || Number.isInteger(value)) return value.toFixed(0);
  if (size >= 0.01) return value.toPrecision(3);
  return value.toExponential(1);
}

export function signed(value, digits = 2) {
  return isMissing(value) ? MISSING : (value > 0 ? "+" : "") + value.toFixed(digits);
}

export function duration(seconds) {
  if (isMissing(seconds)) return MISSING;
  if (seconds < 10) return seconds.toFixed(1) + " s";
  if (seconds < 60) return Math.round(seconds) + " s";
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min ${Math.floor(seconds % 60)} s`;
  return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

export function clock(ts) {
  return new Date(ts * 1000).toLocaleTimeString([], { hour12: false });
}

export function where(item) {
  const parts = [];
  if (!isMissing(item.round)) parts.push(`round ${nth(item.round)}`);
  if (!isMissing(item.step)) parts.push(`step ${nth(item.step)}`);
  if (!isMissing(item.env_id)) parts.push(`env ${item.env_id}`);
  return parts.join(", ");
}

export function grade(thresholds, name, value) {
  if (isMissing(value)) return "unknown";
  const threshold = thresholds?.[name];
  if (!threshold) return "ok";
  const side = threshold.is_low_bad ? -1 : 1;
  if (side * value >= side * threshold.act) return "act";
  return side * value >= side * threshold.watch ? "watch" : "ok";
}

export function byId(id) {
  return document.getElementById(id);
}

// el("td", { class: "text" }, "a", child): strings become text nodes.
export function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (!isMissing(value) && value !== false) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => !isMissing(child)));
  return node;
}

export function svg(tag, attributes = {}, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

export function facts(list, rows) {
  list.replaceChildren(
    ...rows.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))),
  );
}

export function table(node, head, rows) {
  const parts = [];
  if (head) {
    parts.push(el("thead", {}, el("tr", {}, ...head.map((text) => el("th", { scope: "col" }, text)))));
  }
  const body = rows.map(([first, ...rest]) =>
    el("tr", {}, el("th", { scope: "row" }, first),
      ...rest.map((cell) => (cell instanceof HTMLTableCellElement ? cell : el("td", {}, cell)))));
  parts.push(el("tbody", {}, ...body));
  node.replaceChildren(...parts);
}

export function signOf(name, text) {
  const { sign, word } = GRADES[name] ?? GRADES.unknown;
  const mark = el("span", { class: "sign", "aria-hidden": "true" }, sign + " ");
  return el("span", { class: `grade ${name}`, title: word }, mark, text);
}

// A line of recent values; gaps stay gaps.
export function sparkline(values, label) {
  const known = values.filter((value) => !isMissing(value));
  const root = svg("svg", { class: "spark", viewBox: "0 0 100 24", preserveAspectRatio: "none", role: "img", "aria-label": label });
  if (known.length < 2) return root;
  const low = Math.min(...known);
  const span = Math.max(...known) - low || 1;
  let points = [];
  const flush = () => {
    if (points.length > 1) root.append(svg("polyline", { points: points.join(" ") }));
    points = [];
  };
  values.forEach((value, index) => {
    if (isMissing(value)) return flush();
    const x = (100 * index) / (values.length - 1);
    points.push(`${x.toFixed(1)},${(22 - (20 * (value - low)) / span).toFixed(1)}`);
  });
  flush();
  return root;
}

export const STAGES = {
  DORMANT: "empty", GERMINATED: "germ", TRAINING: "train", BLENDING: "blend", HOLDING: "hold",
  FOSSILIZED: "fossil", PRUNED: "pruned", EMBARGOED: "embargo", RESETTING: "reset",
};

export function stageColor(stage) {
  const style = getComputedStyle(document.documentElement);
  return style.getPropertyValue(`--stage-${stage.toLowerCase()}`).trim() || "#8d9caa";
}
