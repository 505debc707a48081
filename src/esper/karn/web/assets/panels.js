// The plain panels: verdict, progress, alarms, growth, heads, bus, run.

import { jumpTo } from "esper/address";
import {
  GRADES, MISSING, STAGES, byId, clock, compact, duration, el, facts, grade, isMissing, nth, number, signOf,
  sparkline, stageColor, table, where,
} from "esper/format";

const ANSWERS = [["Alive", "alive"], ["Learning", "learning"], ["Attention", "attention"]];

export function showVerdict(verdict, lastEvent) {
  const { sign } = GRADES[verdict.grade];
  byId("verdict-headline").replaceChildren(
    el("span", { class: `grade ${verdict.grade}`, "aria-hidden": "true" }, sign + " "), verdict.headline);
  facts(byId("answers"), ANSWERS.map(([label, name]) => [label, signOf(verdict[`${name}_grade`], verdict[name])]));
  byId("answers").append(el("div", {}, el("dt", {}, "Last event"), el("dd", { id: "last-event" }, lastEvent)));
  byId("reasons").replaceChildren(...verdict.reasons.map((reason) =>
    el("li", {}, signOf(reason.grade, ""), jumpLink(reason))));
}

function jumpLink(reason) {
  const link = el("a", { href: `#panel-${reason.panel}` }, reason.text);
  link.addEventListener("click", (event) => {
    event.preventDefault();
    jumpTo(`panel-${reason.panel}`);
  });
  return link;
}

export function showProgress(progress) {
  const round = isMissing(progress.round) ? MISSING : `round ${nth(progress.round)} of ${progress.num_rounds ?? MISSING}`;
  const step = isMissing(progress.step) ? MISSING : `step ${nth(progress.step)} of ${progress.num_steps ?? MISSING}`;
  const share = isMissing(progress.fraction) ? MISSING : `${(100 * progress.fraction).toFixed(1)} %`;
  byId("progress-text").replaceChildren(el("span", {}, `${round}, ${step}`), el("span", {}, share));
  byId("progress").value = progress.fraction ?? 0;
  facts(byId("progress-facts"), [
    ["Remaining", progress.status === "running" ? duration(progress.eta_s) : progress.status],
    ["Elapsed", duration(progress.duration_s ?? progress.elapsed_s)],
    ["Pace", isMissing(progress.steps_per_s) ? MISSING : `${compact(progress.steps_per_s)} env steps/s`],
    ["Accuracy now", number(progress.accuracy_pct, 1, " %")],
    ["Best round", number(progress.best_accuracy_pct, 1, " %")],
    ["Episodes", isMissing(progress.episodes_completed) ? MISSING : String(progress.episodes_completed)],
    ["Checkpoint", checkpointText(progress.last_checkpoint_round)],
  ]);
}

function checkpointText(roundsCompleted) {
  if (isMissing(roundsCompleted)) return MISSING;
  return roundsCompleted === 0 ? "before round 1" : `after round ${roundsCompleted}`;
}

// `find` shows the events of an alarm; a report has no log to show them in.
export function showAlarms(alarms, find) {
  const total = alarms.reduce((sum, alarm) => sum + alarm.count, 0);
  byId("alarm-count").textContent = total ? `${total} in ${alarms.length} kinds` : "";
  byId("alarms-empty").hidden = alarms.length > 0;
  byId("alarms").hidden = alarms.length === 0;
  byId("alarms").replaceChildren(...alarms.map((alarm) => {
    const isGrave = alarm.severity === "error" || alarm.severity === "critical";
    const times = alarm.count > 1 ? ` ×${alarm.count}` : "";
    return el("li", { class: isGrave ? "act" : "watch" },
      signOf(isGrave ? "act" : "watch", alarm.event_type.toLowerCase().replaceAll("_", " ") + times),
      el("span", { class: "where" }, [alarm.severity, where(alarm), clock(alarm.last_ts)].filter(Boolean).join(" · ")),
      el("span", { class: "text" }, alarm.text), find ? eventsButton(alarm, find) : null);
  }));
}

function eventsButton(alarm, find) {
  const name = alarm.event_type.toLowerCase().replaceAll("_", " ");
  const label = `events of ${name}${isMissing(alarm.env_id) ? "" : `, env ${alarm.env_id}`}`;
  const button = el("button", { type: "button", class: "mini", "aria-label": label }, "show in the log");
  button.addEventListener("click", () => find(alarm));
  return button;
}

export function showGrowth(growth) {
  const settled = growth.num_fossilized + growth.num_pruned;
  facts(byId("growth"), [
    ["Germinated", String(growth.num_germinated)], ["Fossilized", String(growth.num_fossilized)], ["Pruned", String(growth.num_pruned)],
    ["Kept, of kept and pruned", settled ? `${Math.round((100 * growth.num_fossilized) / settled)} %` : MISSING],
    ["Parameters added", compact(growth.params_added)],
    ["Compute", isMissing(growth.compute_cost) ? MISSING : `×${growth.compute_cost.toFixed(2)}`],
  ]);
  table(byId("blueprints"), ["blueprint", "tried", "kept", "pruned", "contribution, pp"],
    (growth.blueprints ?? []).map((row) => [row.blueprint, String(row.num_germinated), String(row.num_fossilized), String(row.num_pruned), number(row.mean_contribution_pp)]));
  byId("blueprints").hidden = !growth.blueprints?.length;
}

export function showHeads(rounds, thresholds) {
  const updates = rounds.filter((row) => row.policy);
  const last = updates.at(-1)?.policy;
  byId("heads-empty").hidden = Boolean(last);
  byId("heads").hidden = !last;
  if (!last) return;
  table(byId("heads"), ["head", "entropy", "learnable", "gradient", "over rounds"], Object.entries(last.heads).map(([name, head]) => {
    const history = updates.slice(-40).map((row) => row.policy.heads[name]?.entropy ?? null);
    return [name.replaceAll("_", " "), signOf(grade(thresholds, "head_entropy", head.entropy), number(head.entropy)),
      isMissing(head.learnable_fraction) ? MISSING : `${Math.round(100 * head.learnable_fraction)} %`, compact(head.gradient_norm),
      sparkline(history, `entropy of ${name} over rounds, now ${number(head.entropy)}`)];
  }));
  facts(byId("policy-facts"), [
    ["Explained variance", number(last.explained_variance) + (last.has_low_return_variance ? " (low variance of returns)" : "")],
    ["Entropy", number(last.entropy)], ["Policy loss", compact(last.policy_loss)], ["Value loss", compact(last.value_loss)],
    ["Largest ratio", compact(last.ratio_max)], ["Learning rate", compact(last.learning_rate)], ["Entropy coefficient", compact(last.entropy_coef)],
    ["Optimizer steps", String(last.num_optimizer_steps)], ["KL stop", isMissing(last.kl_stop_epoch) ? "none" : `epoch ${last.kl_stop_epoch}`],
    ["Update", rounds.at(-1)?.is_update_performed === false ? signOf("watch", `skipped: ${rounds.at(-1).skip_reason ?? "no reason given"}`) : `${compact(last.update_ms)} ms`],
  ]);
}

export function showBus(bus, rounds) {
  const pace = rounds.findLast((row) => !isMissing(row.env_steps_per_s));
  facts(byId("bus"), [
    ["Events", compact(bus.num_events)], ["Rate", isMissing(bus.events_per_s) ? MISSING : `${compact(bus.events_per_s)} /s`],
    ["Missing", signOf(bus.num_missed ? "act" : "ok", String(bus.num_missed))],
    ["Unreadable", signOf(bus.num_unreadable ? "act" : "ok", String(bus.num_unreadable))],
    ["Dropped by slow subscribers", signOf(bus.num_dropped ? "watch" : "ok", String(bus.num_dropped))],
    ["Last round", pace ? duration(pace.duration_s) : MISSING], ["Throughput", pace ? `${compact(pace.env_steps_per_s)} env steps/s` : MISSING],
    ["Waiting for data", pace ? duration(pace.feeder_wait_s) : MISSING],
  ]);
  table(byId("counts"), ["type", "count"], Object.entries(bus.counts).map(([name, count]) => [name, String(count)]));
}

export function showResources(resources) {
  table(byId("phases"), ["phase", "wall, ms", "cpu, ms"],
    resources.phases.map((phase) => [phase.phase, number(phase.wall_ms, 1), number(phase.cpu_ms, 1)]));
  byId("memory-part").hidden = resources.allocators.length === 0;
  table(byId("memory"), ["device", "in use, MiB", "reserved, MiB", "retries", "out of memory"], resources.allocators.map((row) => [
    row.device, number(row.allocated_bytes / 2 ** 20, 0), number(row.reserved_bytes / 2 ** 20, 0), String(row.num_retries), String(row.num_ooms)]));
}

export function showRun(run) {
  const given = run.facts;
  byId("run-title").textContent = `${given.task} · ${given.controller} · run ${run.run_id}`;
  document.title = `Esper · ${given.task} · ${run.run_id}`;
  facts(byId("run-facts"), [
    ["Run", run.run_id], ["Task", given.task], ["Controller", given.controller], ["Preset", given.preset ?? "none"],
    ["Data", given.data_source === "synthetic" ? signOf("watch", "synthetic") : given.data_source],
    ["Host", `${given.topology}, ${compact(given.host_params)} parameters`], ["Policy", isMissing(given.policy_params) ? MISSING : `${compact(given.policy_params)} parameters`],
    ["Slots", given.slot_ids.join(", ")], ["Rounds × envs × steps", `${given.num_rounds} × ${given.num_envs} × ${given.num_steps}`],
    ["Seed", String(given.seed)], ["Reward", `${given.reward_family}, ${given.reward_mode}`], ["Telemetry", given.telemetry_level],
    ["Devices", `policy ${given.policy_device}, envs ${given.env_devices.join(", ")}`], ["Lanes", String(given.num_lanes)],
    ["Precision", given.amp_dtype ?? "float32"], ["Compiled", given.compile_mode], ["Esper", given.esper_version], ["torch", given.torch_version],
    ["Started", new Date(run.started_ts * 1000).toLocaleString()], ["Resumed from", isMissing(given.resumed_from_round) ? "no" : `after round ${given.resumed_from_round}`],
  ]);
}

export function showManifest(manifest) {
  byId("config").textContent = manifest ? JSON.stringify(manifest, null, 2) : "this run has no manifest";
}

export function showThresholds(thresholds) {
  table(byId("thresholds"), ["number", "watch", "act", "meaning"], Object.values(thresholds).map((row) => {
    const sign = row.is_low_bad ? "≤ " : "≥ ";
    const unit = row.unit ? ` ${row.unit}` : "";
    return [row.label, sign + row.watch + unit, sign + row.act + unit, el("td", { class: "text" }, row.meaning)];
  }));
}

export function showLegend() {
  byId("legend").replaceChildren(...Object.keys(STAGES).filter((stage) => !["DORMANT", "EMBARGOED", "RESETTING"].includes(stage)).map((stage) => {
    const swatch = el("i", { "aria-hidden": "true" });
    swatch.style.background = stageColor(stage);
    return el("span", {}, swatch, stage.toLowerCase());
  }));
}
