// The grid of envs and the drill-down into one of them.

import { drawEnv, drawWaterfall, drawWorth } from "esper/charts";
import {
  MISSING, STAGES, byId, compact, el, facts, isMissing, nth, number, signOf, signed, sparkline, stageColor, svg, table,
} from "esper/format";

const MANY = 16;
const LANE_HEIGHT = 40;
const LABEL_HEIGHT = 17;
const STATUS = { running: "ok", done: "ok", stalled: "watch", degraded: "watch", "rolled back": "act", failed: "act" };

export class EnvPanel {
  constructor(store, onSelect) {
    this.store = store;
    this.onSelect = onSelect;
    this.order = [];
    this.current = null;
    this.cards = new Map();
    this.dialog = byId("detail");
    this.dialog.addEventListener("close", () => this.closed());
    byId("detail-close").addEventListener("click", () => this.dialog.close());
    byId("detail-next").addEventListener("click", () => this.move(1));
    byId("detail-previous").addEventListener("click", () => this.move(-1));
  }

  get isOpen() {
    return this.dialog.open;
  }

  show() {
    const { envs, attention = [] } = this.store.view;
    const order = attention.map((item) => item.env_id);
    const grid = byId("env-grid");
    byId("env-empty").hidden = order.length > 0;
    grid.classList.toggle("many", order.length > MANY);
    for (const [envId, card] of this.cards) {
      if (!(envId in envs)) { card.remove(); this.cards.delete(envId); }
    }
    for (const item of attention) this.fill(this.card(item.env_id), envs[item.env_id], item);
    if (order.join() !== this.order.join()) this.reorder(grid, order);
    this.order = order;
  }

  card(envId) {
    let card = this.cards.get(envId);
    if (!card) {
      const button = el("button", { type: "button", class: "env", "data-env": envId });
      button.addEventListener("click", () => { this.mark(envId); this.open(); });
      button.addEventListener("focus", () => this.mark(envId));
      card = el("li", {}, button);
      this.cards.set(envId, card);
    }
    return card;
  }

  // Moving an element takes the focus away, so it is given back.
  reorder(grid, order) {
    const focused = document.activeElement;
    grid.append(...order.map((envId) => this.cards.get(envId)));
    if (focused?.dataset?.env !== undefined) focused.focus({ preventScroll: true });
  }

  fill(card, env, attention) {
    const button = card.firstElementChild;
    const level = STATUS[env.status] ?? "unknown";
    button.className = `env ${level}`;
    const reward = isMissing(env.total_reward) ? MISSING : signed(env.total_reward, 1);
    const parts = [
      el("span", { class: "env-head" }, el("b", {}, `env ${env.env_id}`), signOf(level, env.status)),
      el("span", { class: "env-main" },
        el("span", { class: "env-accuracy" }, number(env.accuracy_pct, 1), el("small", {}, " %")),
        sparkline(env.sparkline, `accuracy of the last ${env.sparkline.length} steps`)),
      el("span", { class: "slots" }, ...env.slots.map(slotChip)),
      el("span", { class: "env-foot" }, `${lastAction(env.last_action)} · reward ${reward}`),
      attention.reasons.length ? el("span", { class: "env-why" }, signOf(attention.grade, attention.reasons.join(", "))) : null,
    ];
    button.replaceChildren(...parts.filter(Boolean));
  }

  mark(envId) {
    this.cards.get(this.current)?.firstElementChild.removeAttribute("aria-current");
    this.current = envId;
    this.cards.get(envId)?.firstElementChild.setAttribute("aria-current", "true");
  }

  move(by) {
    if (!this.order.length) return;
    const at = this.order.indexOf(this.current);
    const next = at < 0 ? (by > 0 ? 0 : this.order.length - 1) : Math.min(Math.max(at + by, 0), this.order.length - 1);
    this.mark(this.order[next]);
    if (this.isOpen) this.open();
    else this.cards.get(this.current).firstElementChild.focus();
  }

  open() {
    if (this.current === null) return;
    this.onSelect(this.current);
    if (!this.isOpen) this.dialog.showModal();
    this.showDetail();
  }

  closed() {
    this.onSelect(null);
    this.cards.get(this.current)?.firstElementChild.focus();
  }

  showDetail() {
    if (!this.isOpen) return;
    const env = this.store.view.envs[this.current];
    const detail = this.store.details[this.current];
    byId("detail-title").textContent = `Env ${this.current}`;
    if (env) showFacts(env);
    // Until its own details arrive, nothing of another env or episode is shown.
    const isCurrent = detail && env && detail.episode_id === env.episode_id;
    const shown = isCurrent ? detail : emptyDetail(this.current);
    drawLanes(shown, this.store.view.progress?.num_steps);
    drawEnv(shown);
    drawWaterfall(shown.reward_components);
    drawWorth(shown);
    showCoalitions(shown);
    showActions(shown);
  }
}

function emptyDetail(envId) {
  return { env_id: envId, steps: [], accuracies_pct: [], rewards: [], lanes: {}, contributions_pp: {}, shapley_pp: {}, coalitions: [], reward_components: {}, actions: [] };
}

function lastAction(action) {
  if (!action) return "no action yet";
  return [action.op.toLowerCase().replaceAll("_", " "), action.slot_id, action.succeeded ? null : "(failed)"].filter(Boolean).join(" ");
}

function slotChip(slot) {
  const name = STAGES[slot.stage] ?? slot.stage.toLowerCase();
  if (slot.stage === "DORMANT") return el("span", { class: "slot empty-slot", title: `${slot.slot_id}: empty` }, MISSING);
  const bar = el("i", { class: slot.stage.toLowerCase() });
  bar.style.width = `${Math.max(8, 100 * (slot.alpha ?? 0))}%`;
  const alpha = isMissing(slot.alpha) ? "alpha not known" : `alpha ${slot.alpha.toFixed(2)}`;
  const health = isMissing(slot.gradient_health) ? "" : `, gradient health ${slot.gradient_health.toFixed(2)}`;
  const steps = isMissing(slot.steps_in_stage) ? "" : ` for ${slot.steps_in_stage} steps`;
  const title = `${slot.slot_id}: ${slot.blueprint ?? "seed"}, ${slot.stage.toLowerCase()}${steps}, ${alpha}${health}`;
  return el("span", { class: "slot", title }, name, bar);
}

function showFacts(env) {
  const level = STATUS[env.status] ?? "unknown";
  const rows = [
    ["Status", signOf(level, env.status)], ["Step", String(nth(env.step))],
    ["Accuracy", number(env.accuracy_pct, 2, " %")], ["Best", number(env.best_accuracy_pct, 2, " %")], ["Loss", compact(env.loss)],
    ["Reward", isMissing(env.total_reward) ? MISSING : signed(env.total_reward)],
    ["Task return", isMissing(env.task_return) ? MISSING : signed(env.task_return)],
    ["Seeds", `${env.num_germinated} tried, ${env.num_fossilized} kept, ${env.num_pruned} pruned`],
  ];
  if (env.context) rows.push(["Context", env.context]);
  if (env.outcome) rows.push(["Grown to", `×${env.outcome.param_ratio.toFixed(2)} of the host`]);
  if (env.num_rollbacks) rows.push(["Rollbacks", signOf("act", String(env.num_rollbacks))]);
  if (env.failure) rows.push(["Failure", env.failure]);
  if (env.previous) rows.push(["Last episode", `${env.previous.status}, ${number(env.previous.final_accuracy_pct, 1, " %")}`]);
  facts(byId("detail-facts"), rows);
}

function showCoalitions(detail) {
  const alone = isMissing(detail.committed_accuracy_pct) ? "" : `, fossils alone ${number(detail.committed_accuracy_pct)} %`;
  const note = detail.unavailable_reason ? `not measured: ${detail.unavailable_reason}` : isMissing(detail.coalitions_step) ? "none measured yet" : `step ${nth(detail.coalitions_step)}${alone}`;
  byId("coalitions-step").textContent = note;
  const rows = [...detail.coalitions].sort((one, other) => (other.accuracy_pct ?? -1) - (one.accuracy_pct ?? -1));
  table(byId("coalitions"), ["seeds on", "accuracy, %"], rows.map((row) => [row.seeds_on.join(" + ") || "none: host and fossils", number(row.accuracy_pct)]));
}

function words(content) {
  return el("td", { class: "text" }, content);
}

function showActions(detail) {
  table(byId("env-actions"), ["step", "op", "slot", "blueprint", "probability", "reward", "result"],
    [...detail.actions].reverse().map((action) => [
      String(nth(action.step)), words(action.op.toLowerCase().replaceAll("_", " ") + (action.is_forced ? " (forced)" : "")),
      words(action.slot_id ?? MISSING), words(action.blueprint ?? MISSING), number(action.confidence), isMissing(action.reward) ? MISSING : signed(action.reward),
      action.succeeded ? signOf("ok", "done") : signOf("watch", action.note ?? "failed")]));
}

// One lane per slot: frame and label show the stage, the filled height is alpha.
function drawLanes(detail, numSteps) {
  const host = byId("lanes");
  const width = Math.max(host.clientWidth, 280);
  const left = 46;
  const slots = Object.keys(detail.lanes);
  const steps = Math.max(numSteps ?? 0, (detail.steps.at(-1) ?? 0) + 1, 1);
  const scale = (width - left - 6) / steps;
  const height = slots.length * (LANE_HEIGHT + 6) + 18;
  const words = slots.map((slot) => `${slot}: ${detail.lanes[slot].map((part) => `${part.stage.toLowerCase()} from step ${nth(part.first_step)}`).join(", ")}`).join("; ");
  const root = svg("svg", { width, height, role: "img", "aria-label": words || "No step yet" });
  slots.forEach((slot, row) => {
    const top = row * (LANE_HEIGHT + 6);
    root.append(text(0, top + LANE_HEIGHT / 2 + 4, slot));
    root.append(svg("rect", { class: "frame", x: left, y: top, width: steps * scale, height: LANE_HEIGHT, rx: 4 }));
    for (const part of detail.lanes[slot]) root.append(...stretch(part, left, top, scale));
  });
  const every = Math.max(1, Math.ceil(steps / Math.max(4, Math.floor(width / 90))));
  for (let step = 0; step < steps; step += every) root.append(text(left + step * scale, height - 3, String(nth(step))));
  host.replaceChildren(root);
}

function text(x, y, content) {
  const node = svg("text", { x, y });
  node.textContent = content;
  return node;
}

function stretch(part, left, top, scale) {
  if (part.stage === "DORMANT") return [];
  const color = stageColor(part.stage);
  const x = left + part.first_step * scale;
  const width = (part.last_step - part.first_step + 1) * scale;
  const frame = svg("rect", { x, y: top, width, height: LANE_HEIGHT, fill: color, "fill-opacity": 0.2, stroke: color, rx: 3 });
  const title = svg("title");
  title.textContent = `${part.stage.toLowerCase()} ${part.blueprint ?? ""}, steps ${nth(part.first_step)} to ${nth(part.last_step)}`;
  frame.append(title);
  const nodes = [frame];
  const room = LANE_HEIGHT - LABEL_HEIGHT;
  part.alphas.forEach((alpha, index) => {
    if (isMissing(alpha) || alpha <= 0) return;
    const tall = alpha * room;
    nodes.push(svg("rect", { x: x + index * scale, y: top + LANE_HEIGHT - tall, width: scale + 0.5, height: tall, fill: color }));
  });
  const name = STAGES[part.stage] ?? part.stage.toLowerCase();
  // A narrow stretch has room for the first letter at least, so that colour is not the only sign.
  const fits = (words) => words.length * 6.6 + (words.length > 1 ? 8 : 2) < width;
  const shown = [`${name} ${part.blueprint ?? ""}`.trim(), name, name[0]].find(fits);
  if (shown) nodes.push(text(x + (shown.length > 1 ? 4 : 2), top + 12, shown));
  return nodes;
}
