// What all charts share: colours, axes, zoom, words for those who do not see them, CSV and PNG.

import { byId, el, isMissing } from "esper/format";

const URL_LIFE_MS = 10000;

export function theme() {
  const style = getComputedStyle(document.documentElement);
  const read = (name) => style.getPropertyValue(name).trim();
  return {
    text: read("--text"), muted: read("--muted"), line: read("--line"), accent: read("--accent"),
    band: read("--band"), second: read("--second"), bandSecond: read("--band-second"),
    ok: read("--ok"), watch: read("--watch"), act: read("--act"), panel: read("--panel"),
  };
}

export function layout(colors, extra = {}) {
  const axis = { gridcolor: colors.line, zerolinecolor: colors.line, linecolor: colors.line, tickcolor: colors.line, automargin: true };
  const merged = {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { color: colors.text, size: 12, family: 'system-ui, "DejaVu Sans", sans-serif' },
    margin: { l: 44, r: 10, t: 8, b: 36 }, showlegend: false, hovermode: "x unified",
    hoverlabel: { bgcolor: colors.panel, bordercolor: colors.line, font: { color: colors.text } },
    // As long as it stays the same, plotly keeps the zoom across updates.
    uirevision: "same",
    ...extra,
  };
  for (const name of Object.keys(merged)) {
    if (/^[xy]axis\d*$/.test(name)) merged[name] = { ...axis, ...merged[name] };
  }
  // Copies, because plotly notes the type it found in the axis it was given.
  merged.xaxis ??= { ...axis };
  merged.yaxis ??= { ...axis };
  return merged;
}

// A panel also changes its width without a resize of the window: a scroll bar that appears is enough.
const widths = new ResizeObserver((entries) => requestAnimationFrame(() => {
  for (const { target } of entries) {
    const isStale = target._fullLayout && Math.abs(target._fullLayout.width - target.clientWidth) >= 1;
    if (isStale && target.offsetParent !== null) Plotly.Plots.resize(target);
  }
}));

export function draw(id, traces, look, words) {
  const node = byId(id);
  // A hidden panel has no size to draw into; it is drawn when it is shown.
  if (node.offsetParent === null) return;
  node.setAttribute("aria-label", words);
  keepZoom(node, look);
  Plotly.react(node, traces, look, { displayModeBar: false });
  if (!node.zooms) followZoom(node);
  widths.observe(node);
  offerFiles(node);
}

// plotly keeps a zoom only on axes whose own range stays the same; those that count grow.
function keepZoom(node, look) {
  if (node.layout?.uirevision !== look.uirevision) node.zooms?.clear();
  for (const [axis, range] of node.zooms ?? []) if (look[axis]) look[axis].range = range;
}

function followZoom(node) {
  node.zooms = new Map();
  node.on("plotly_relayout", (change) => {
    for (const [name, value] of Object.entries(change)) {
      const [, axis, part] = name.match(/^([xy]axis\d*)\.(range\[0\]|range|autorange)$/) ?? [];
      if (part === "range[0]") node.zooms.set(axis, [value, change[`${axis}.range[1]`]]);
      else if (part) node.zooms.delete(axis); // a double click shows everything again
    }
  });
}

export function lineMode(count) {
  return count < 40 ? "lines+markers" : "lines";
}

// plotly reads a few tags in its texts; a run's own words must not become any.
export function plain(text) {
  return text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
}

function offerFiles(node) {
  if (node.nextElementSibling?.classList.contains("files")) return;
  const title = node.closest("section").querySelector("h2, h3").firstChild.textContent.trim();
  const button = (kind, save) => {
    const made = el("button", { type: "button", class: "mini", "aria-label": `${kind} of ${title}` }, kind);
    made.addEventListener("click", save);
    return made;
  };
  node.after(el("p", { class: "files" },
    button("CSV", () => saveText(node)), button("PNG", () => savePicture(node))));
}

function fileName(node, suffix) {
  const parts = `${document.title} ${node.id.replace("chart-", "")}`;
  return `${parts.replace(/[^A-Za-z0-9]+/g, "-").toLowerCase()}.${suffix}`;
}

function saveAs(name, address) {
  el("a", { href: address, download: name }).click();
}

function saveText(node) {
  const address = URL.createObjectURL(new Blob([tableOf(node.data)], { type: "text/csv" }));
  saveAs(fileName(node, "csv"), address);
  setTimeout(() => URL.revokeObjectURL(address), URL_LIFE_MS);
}

async function savePicture(node) {
  const look = { ...node.layout, paper_bgcolor: theme().panel };
  const size = { width: node.clientWidth, height: node.clientHeight };
  const picture = await Plotly.toImage({ data: node.data, layout: look }, { format: "png", scale: 2, ...size });
  saveAs(fileName(node, "png"), picture);
}

// One line per point; bars that do not begin at zero have a base.
function tableOf(traces) {
  const rows = [["series", "x", "y", "base"]];
  for (const trace of traces) {
    (trace.x ?? []).forEach((x, index) => rows.push([trace.name, x, trace.y[index], trace.base?.[index]]));
  }
  return rows.map((row) => row.map(cell).join(",") + "\r\n").join("");
}

function cell(value) {
  if (isMissing(value)) return "";
  if (typeof value === "number") return String(value);
  // A spreadsheet would compute what begins like a formula.
  const text = String(value).replaceAll("\u200b", "").replace(/^[=+\-@\t\r]/, "'$&");
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}
