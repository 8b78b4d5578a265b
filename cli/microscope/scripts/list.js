"use strict";

const MOST_SHOWN = 200;
const KINDS = { failed: "failed", truncated: "truncated", errors: "tool error", cut: "clipped" };
const SORTS = { best: "best", worst: "worst", longest: "longest", pull: "largest share" };

/** The places of the episodes that pass the filters, in the order of the list. */
function listed() {
  const { step, stop, tool, kind, sort, q } = state;
  const filtered = stop || tool || kind || sort || q;
  const text = (q || "").toLowerCase();
  const accepts = {
    failed: (row) => row.failed, truncated: (row) => row.truncated, errors: (row) => row.errors > 0, cut: (row) => row.cut > 0,
  };
  const found = placesWhere((row) => {
    if (row.part !== part) return false;
    if (!filtered && row.step !== step) return false;
    if (stop && row.stop !== stop) return false;
    if (tool && !row.tools.includes(tool)) return false;
    if (kind && !accepts[kind](row)) return false;
    return !text || `${row.task} ${row.question} ${row.group}`.toLowerCase().includes(text);
  });
  const keys = {
    best: (place) => -(brief(place).reward ?? -Infinity), worst: (place) => brief(place).reward ?? Infinity,
    longest: (place) => -brief(place).tokens, pull: (place) => -shareOfStep(place),
  };
  const latestFirst = (one, other) => brief(other).step - brief(one).step || one - other;
  if (sort) found.sort((one, other) => keys[sort](one) - keys[sort](other) || latestFirst(one, other));
  else if (filtered) found.sort(latestFirst);
  const places = filtered || run.parts[part] === "training" ? found : worstTasks(found).flat();
  return { places, isFlat: Boolean(filtered) };
}

/** The episodes of each task, the worst task first. An evaluation records them in the order in which they ended. */
function worstTasks(places) {
  const tasks = [...Map.groupBy(places, (place) => brief(place).group).values()];
  const reward = new Map(tasks.map((members) => [members, mean(rewardsOf(members.map(brief))) ?? -Infinity]));
  for (const members of tasks) members.sort((one, other) => brief(one).member - brief(other).member);
  return tasks.sort((one, other) => reward.get(one) - reward.get(other));
}

/** The name of a step in the part that is looked at. */
function stepName(step) {
  return run.parts[part] === "training" ? `step ${step}` : `${run.parts[part]} at step ${step}`;
}

/** The share of an episode in the gradients of its step; see why.js. */
function shareOfStep(place) {
  const { step, pull } = brief(place);
  return pull / (pullOfStep.get(step) || 1);
}

function sidebar() {
  const { places, isFlat } = listed();
  const reward = run.curves.find((curve) => curve.name === "reward");
  const options = { marks: recordedSteps, selected: state.step, onstep: (step) => go({ step: nearestStep(step) }), height: 64 };
  return [
    reward && chart({ ...reward, steps: run.steps }, options),
    run.parts.length > 1 && h("div.row.chips.parts", { role: "group", "aria-label": "part of the run" }, run.parts.map((title, number) =>
      h("button.chip", { "aria-pressed": String(number === part), onclick: () => go({ part: number, step: null, episode: null }) }, title))),
    run.episodes.length ? filters() : null,
    run.episodes.length ? (isFlat ? flatList(places) : [!isOneEvaluation() && stepSwitch(), groupList(places)]) : null,
  ];
}

function filters() {
  const choose = (name, title, values) =>
    h("select", { "aria-label": title, name, onchange: (event) => go({ [name]: event.target.value || null }) },
      h("option", { value: "" }, title), values.map((value) => h("option", { value, selected: state[name] === value }, value)));
  const chip = (name, value, title) =>
    h("button.chip", { "aria-pressed": String(state[name] === value), onclick: () => go({ [name]: state[name] === value ? null : value }) }, title);
  const sorted = (names) => [...new Set(names)].sort();
  const learns = ([value]) => run.parts[part] === "training" || !["cut", "pull"].includes(value);
  const active = ["stop", "tool", "kind", "sort", "q"].some((name) => state[name]);
  return h("div.filters", {},
    h("input", { type: "search", name: "q", placeholder: "search tasks", "aria-label": "search tasks", value: state.q || "",
      oninput: (event) => go({ q: event.target.value || null }, { replace: true }) }),
    h("div.row", {}, choose("stop", "any stop reason", sorted(run.episodes.map((row) => row.stop))),
      choose("tool", "any tool", sorted(run.episodes.flatMap((row) => row.tools)))),
    h("div.row.chips", {},
      Object.entries(KINDS).filter(learns).map(([value, title]) => chip("kind", value, title)),
      Object.entries(SORTS).filter(learns).map(([value, title]) => chip("sort", value, title)),
      active && h("button.chip.clear", { onclick: () => go({ stop: null, tool: null, kind: null, sort: null, q: null }) }, "clear")));
}

function stepSwitch() {
  const index = recordedSteps.indexOf(state.step);
  const to = (change) => ({ disabled: recordedSteps[index + change] === undefined, onclick: () => go({ step: recordedSteps[index + change] }) });
  return h("div.stepswitch", {},
    h("button", { ...to(-1), "aria-label": "previous recorded step" }, "‹"),
    h("span", {}, stepName(state.step)),
    h("button", { ...to(1), "aria-label": "next recorded step" }, "›"));
}

function groupList(places) {
  const groups = Map.groupBy(places, (place) => brief(place).group);
  return h("ol.groups", {}, [...groups.values()].map((members) => {
    const row = brief(members[0]);
    const isFlat = new Set(rewardsOf(members.map(brief))).size < 2;
    return h("li", {},
      h("div.question", { title: row.group }, row.question || row.task),
      h("div.cells", {}, members.map(cell), isFlat && row.trained && h("span.note", {}, "no spread")));
  }));
}

/** A small square for an episode, coloured by its reward. */
function cell(place) {
  const row = brief(place);
  const title = `${row.group}[${row.member}]: reward ${show(row.reward)}, ${row.stop}, ${plural(row.tokens, "token")}`;
  return h(row.failed ? "button.cell.failed" : "button.cell", {
    title, "aria-label": title, "aria-current": state.episode === place ? "true" : null, "data-place": place,
    style: { "--fill": rewardColor(row.reward, rewardRange) }, onclick: () => go({ episode: place }),
  }, row.failed ? "×" : show(row.reward, 2));
}

function flatList(places) {
  const rows = places.slice(0, MOST_SHOWN).map((place) => {
    const row = brief(place);
    return h("li.episode", { "aria-current": state.episode === place ? "true" : null },
      cell(place),
      h("button.plain", { onclick: () => go({ episode: place }) },
        h("span.question", {}, row.question || row.task),
        h("span.meta", {}, `${isOneEvaluation() ? "" : `step ${row.step} · `}${row.stop} · ${plural(row.tokens, "token")}${row.errors ? ` · ${plural(row.errors, "error")}` : ""}`)));
  });
  const more = places.length > MOST_SHOWN ? `; the first ${MOST_SHOWN} are shown` : "";
  return [h("p.count", { role: "status" }, `${plural(places.length, "episode")}${more}`), h("ol.flat", {}, rows)];
}
