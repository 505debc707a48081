// The page's copy of the view: patches in, sections out. It derives nothing by itself.

import { MISSING, clock, duration, isMissing } from "esper/format";

const KEYED = ["rounds", "steps", "envs", "seeds"];

export class Store {
  constructor() {
    this.view = { rounds: {}, steps: {}, envs: {}, seeds: {} };
    this.details = {};
    this.receivedAt = null;
    this.isReport = false;
  }

  // Merges a patch and returns the names of the sections that changed.
  take(patch) {
    const changed = new Set(["progress", "verdict"]);
    // Everything anew, perhaps of another run: the details seen so far are of no use any more.
    if (patch.thresholds) this.details = {};
    for (const name of patch.replaced ?? []) {
      this.view[name] = {};
      changed.add(name);
    }
    for (const [name, value] of Object.entries(patch)) {
      if (KEYED.includes(name)) Object.assign(this.view[name], value);
      else if (name === "detail") this.details[value.env_id] = value;
      else this.view[name] = value;
      changed.add(name);
    }
    this.receivedAt = performance.now();
    return changed;
  }

  // How old the last event is, by the server's clock plus the time since it last spoke.
  lastEvent() {
    const silent = this.view.verdict?.silence_s;
    if (isMissing(silent)) return MISSING;
    if (this.isReport) return clock(this.view.progress.last_event_ts);
    const age = silent + (performance.now() - this.receivedAt) / 1000;
    return age < 1.5 ? "just now" : `${duration(age)} ago`;
  }

  rows(name) {
    return Object.entries(this.view[name])
      .sort(([one], [other]) => Number(one) - Number(other))
      .map(([, value]) => value);
  }
}
