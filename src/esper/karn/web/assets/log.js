// The event log: the newest events of the live tail, or what a search of the whole run has found.
// A search is done by the server, backwards from the newest event; later events join it from the tail.

import { base, jumpTo, showInAddress, shownParams } from "esper/address";
import { MISSING, byId, clock, el, isMissing, nth } from "esper/format";
import { Connection } from "esper/connection";

const KEPT = 500;
const SHOWN = 200;
const BACKLOG = 300;
const RANKS = { debug: 0, info: 1, warning: 2, error: 3, critical: 4 };
const SEVERITIES = Object.keys(RANKS);
const REFRESH_MS = 300;
const TYPING_MS = 300;
const MAX_WORDS = 8;
// People count rounds and steps from one, the log from zero.
const PLACES = { round: ["round", 1], step: ["step", 1], env: ["env_id", 0] };

export class EventLog {
  constructor() {
    this.events = [];
    this.found = null;
    this.isPaused = false;
    this.isDirty = false;
    this.lastSeq = -1;
    this.newestSeq = -1; // of the log, known from the first frame on
    this.marked = null;
    const shown = shownParams();
    byId("log-text").value = shown.get("log") ?? "";
    if (SEVERITIES.slice(0, 4).includes(shown.get("from"))) byId("log-severity").value = String(RANKS[shown.get("from")]);
    byId("log-text").addEventListener("input", () => this.changed(TYPING_MS));
    byId("log-severity").addEventListener("change", () => this.changed(0));
    byId("log-filter").addEventListener("submit", (event) => event.preventDefault());
    byId("log-pause").addEventListener("click", () => this.togglePause());
    byId("log-older").addEventListener("click", () => this.search(this.found.events.at(-1).seq));
    setInterval(() => this.show(), REFRESH_MS);
  }

  connect() {
    this.connection = new Connection(`${base()}/ws`, { onMessage: (data) => this.take(data) });
  }

  take(data) {
    for (const line of data.split("\n")) {
      if (!line) continue;
      const message = JSON.parse(line);
      if (message.type === "hello" && !message.is_subscribed) this.subscribe(message);
      else if (message.type === "gap") this.keep({ gap: message });
      else if (message.event_type && message.seq > this.lastSeq) {
        this.lastSeq = message.seq;
        message.line = line.toLowerCase();
        this.keep(message);
      }
    }
  }

  subscribe(hello) {
    const isOther = hello.last_seq < this.lastSeq; // another run answers at this address
    if (isOther) this.lastSeq = -1;
    this.newestSeq = hello.last_seq;
    const since = Math.max(this.lastSeq + 1, hello.last_seq - BACKLOG, 0);
    this.connection.send({ since, batch: true });
    if (this.isSearching && (isOther || !this.found)) this.search();
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

  get rank() {
    return Number(byId("log-severity").value);
  }

  get words() {
    return parsed(byId("log-text").value);
  }

  // The tail alone holds what is shown without a filter.
  get isSearching() {
    return this.words.length > 0 || this.rank > RANKS.info;
  }

  // Shows what an alarm is about: its events, this one marked.
  find(alarm) {
    const env = isMissing(alarm.env_id) ? "" : ` env:${alarm.env_id}`;
    byId("log-text").value = `type:${alarm.event_type}${env}`;
    byId("log-severity").value = String(RANKS.debug);
    this.changed(0);
    this.marked = alarm.seq;
    jumpTo("panel-log");
    byId("log").focus({ preventScroll: true });
  }

  changed(delayMs) {
    clearTimeout(this.timer);
    this.marked = null;
    this.timer = setTimeout(() => this.begin(), delayMs);
  }

  begin() {
    showInAddress({ log: byId("log-text").value.trim(), from: this.rank === RANKS.info ? "" : SEVERITIES[this.rank] });
    this.found = null;
    this.request?.abort();
    this.isDirty = true;
    if (this.isSearching) this.search();
  }

  async search(before = Math.max(this.lastSeq, this.newestSeq) + 1) {
    this.request?.abort();
    this.request = new AbortController();
    this.found ??= { events: [], top: before };
    this.found.state = "searching the whole run";
    const found = this.found;
    try {
      const response = await fetch(this.address(before), { signal: this.request.signal });
      if (!response.ok) throw new Error(await response.text());
      let count = 0;
      for await (const event of eventsOf(response)) {
        found.events.push(event);
        count += 1;
        this.isDirty = true;
      }
      found.state = count < SHOWN ? "whole run searched" : "older ones not searched yet";
      found.hasOlder = count === SHOWN;
    } catch (error) {
      if (error.name === "AbortError") return;
      found.state = "▲ the search failed";
    }
    this.isDirty = true;
  }

  address(before) {
    const query = new URLSearchParams(location.search);
    query.set("before", before);
    query.set("limit", SHOWN);
    if (this.rank > 0) query.set("min_severity", SEVERITIES[this.rank]);
    for (const { text, types, env } of this.words) {
      if (types) query.set("types", types);
      else if (env) query.set("env", env);
      query.append("text", text);
    }
    return `${base()}/api/events?${query}`;
  }

  show() {
    if (!this.isDirty || this.isPaused) return;
    this.isDirty = false;
    const words = this.words;
    const rank = this.rank;
    const top = this.found?.top ?? -1;
    const newer = this.events.filter((event) => event.gap || (event.seq >= top && matches(event, words, rank)));
    const shown = [...newer, ...(this.found?.events ?? [])];
    const count = `${shown.length} ${shown.length === 1 ? "event" : "events"}`;
    byId("log-note").textContent = this.found ? `${count}, ${this.found.state}` : `${newer.length} of the last ${this.events.length}`;
    byId("log-older").hidden = !this.found?.hasOlder;
    byId("log").replaceChildren(...(this.found ? shown : shown.slice(0, SHOWN)).map((event) => row(event, this.marked)));
    document.querySelector("#log .marked")?.scrollIntoView({ block: "nearest" });
  }
}

// `type:NAME`, `env 3`, `round:2`; everything else is a text that the event's line contains.
function parsed(text) {
  const spaced = text.trim().replace(/\b(round|step|env)\s+(\d+)/gi, "$1:$2");
  return spaced.split(/\s+/).filter(Boolean).slice(0, MAX_WORDS).map((word) => {
    const [, name, value] = word.match(/^(type|round|step|env):(.+)$/i) ?? [];
    if (/^type$/i.test(name ?? "")) return { text: `"event_type":"${value}"`.toLowerCase(), types: value.toUpperCase() };
    if (name && /^\d+$/.test(value)) {
      const [field, first] = PLACES[name.toLowerCase()];
      return { text: `"${field}":${value - first},`, env: field === "env_id" ? value : null };
    }
    return { text: word.toLowerCase() };
  });
}

function matches(event, words, rank) {
  if ((RANKS[event.severity] ?? 1) < rank) return false;
  return words.every(({ text }) => event.line.includes(text));
}

async function* eventsOf(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    const lines = (rest + (value ?? "")).split("\n");
    rest = lines.pop();
    for (const line of lines) yield { ...JSON.parse(line), line: line.toLowerCase() };
    if (done) return;
  }
}

function row(event, marked) {
  if (event.gap) return el("li", { class: "gap" }, `▲ ${event.gap.num_dropped} events were not shown because this page was too slow`);
  const sign = RANKS[event.severity] >= 3 ? "✗ " : RANKS[event.severity] === 2 ? "▲ " : "";
  return el("li", { class: event.seq === marked ? `${event.severity} marked` : event.severity, "data-seq": event.seq },
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
