// The event log: the newest events of the live tail, filtered in the page.

import { MISSING, byId, clock, el, nth, where } from "esper/format";
import { Connection } from "esper/connection";

const KEPT = 500;
const SHOWN = 200;
const BACKLOG = 300;
const RANKS = { debug: 0, info: 1, warning: 2, error: 3, critical: 4 };
const REFRESH_MS = 300;

export class EventLog {
  constructor() {
    this.events = [];
    this.isPaused = false;
    this.isDirty = false;
    this.lastSeq = -1;
    byId("log-text").addEventListener("input", () => { this.isDirty = true; });
    byId("log-severity").addEventListener("change", () => { this.isDirty = true; });
    byId("log-filter").addEventListener("submit", (event) => event.preventDefault());
    byId("log-pause").addEventListener("click", () => this.togglePause());
    setInterval(() => this.show(), REFRESH_MS);
  }

  connect() {
    this.connection = new Connection("/ws", { onMessage: (data) => this.take(data) });
  }

  take(data) {
    for (const line of data.split("\n")) {
      if (!line) continue;
      const message = JSON.parse(line);
      if (message.type === "hello" && !message.is_subscribed) this.subscribe(message);
      else if (message.type === "gap") this.keep({ gap: message });
      else if (message.event_type && message.seq > this.lastSeq) {
        this.lastSeq = message.seq;
        this.keep(message);
      }
    }
  }

  subscribe(hello) {
    if (hello.last_seq < this.lastSeq) this.lastSeq = -1; // another run answers at this address
    const since = Math.max(this.lastSeq + 1, hello.last_seq - BACKLOG, 0);
    this.connection.send({ since, batch: true });
  }

  keep(event) {
    this.events.unshift(event);
    if (this.events.length > KEPT) this.events.length = KEPT;
    this.isDirty = true;
  }

  togglePause() {
    this.isPaused = !this.isPaused;
    byId("log-pause").setAttribute("aria-pressed", String(this.isPaused));
    byId("log-pause").textContent = this.isPaused ? "Resume" : "Pause";
    this.isDirty = true;
  }

  show() {
    if (!this.isDirty || this.isPaused) return;
    this.isDirty = false;
    const words = byId("log-text").value.trim().toLowerCase();
    const rank = Number(byId("log-severity").value);
    const matching = this.events.filter((event) => event.gap || matches(event, words, rank));
    byId("log-note").textContent = `${matching.length} of the last ${this.events.length}`;
    byId("log").replaceChildren(...matching.slice(0, SHOWN).map(row));
  }
}

function matches(event, words, rank) {
  if ((RANKS[event.severity] ?? 1) < rank) return false;
  return !words || `${event.event_type} ${where(event)} ${summary(event)}`.toLowerCase().includes(words);
}

function row(event) {
  if (event.gap) return el("li", { class: "gap" }, `▲ ${event.gap.num_dropped} events were not shown because this page was too slow`);
  const sign = RANKS[event.severity] >= 3 ? "✗ " : RANKS[event.severity] === 2 ? "▲ " : "";
  return el("li", { class: event.severity },
    el("span", { class: "when" }, clock(event.ts)), el("span", { class: "severity" }, sign + event.severity),
    el("span", { class: "type" }, event.event_type), el("span", { class: "where" }, shortWhere(event)), el("span", { class: "what" }, summary(event)));
}

function shortWhere(event) {
  return [["r", nth(event.round)], ["s", nth(event.step)], ["e", event.env_id ?? MISSING]].filter(([, value]) => value !== MISSING).map(([name, value]) => name + value).join(" ");
}

function summary(event) {
  event.summary ??= Object.entries(event.data)
    .filter(([, value]) => typeof value !== "object" && value !== "")
    .slice(0, 7)
    .map(([name, value]) => `${name} ${typeof value === "number" && !Number.isInteger(value) ? value.toPrecision(4) : value}`)
    .join(", ");
  return event.summary;
}
