"use strict";

// The state of the page stands in its address, so that a link leads to what its sender saw.
const NUMBERS = ["episode", "step", "with", "part"];
let state = {};

function readState() {
  state = { episode: null, step: null, with: null, part: null };
  for (const [name, value] of new URLSearchParams(location.hash.slice(1))) state[name] = NUMBERS.includes(name) ? Number(value) : value;
  if (!(state.episode >= 0 && state.episode < run.episodes.length)) state.episode = null;
  if (state.episode !== null) {
    state.step ??= brief(state.episode).step;
    state.part = brief(state.episode).part;
  }
  if (!(state.part in run.parts)) state.part = 0;
  if (state.part !== part) showPart(state.part);
  if (!recordedSteps.includes(state.step)) state.step = recordedSteps[recordedSteps.length - 1] ?? null;
}

/** Change some of the state and show it. */
function go(changes, { replace = false } = {}) {
  const next = { ...state, ...changes };
  if (changes.episode !== undefined && changes.episode !== null) {
    next.step = brief(changes.episode).step;
    next.part = brief(changes.episode).part;
  }
  const known = Object.entries(next).filter(([name, value]) => value !== null && value !== undefined && value !== "" && (name !== "part" || value > 0));
  const address = `#${new URLSearchParams(known)}`;
  if (replace) history.replaceState(null, "", address);
  else history.pushState(null, "", address);
  readState();
  render();
}

const side = h("aside.side", { "aria-label": "episodes" });
const main = h("main.main", { id: "main", tabindex: -1 });
let shown = 0; // counts renderings, so that a slow one does not replace a later one

async function render() {
  hideTip();
  const number = (shown += 1);
  const focused = document.activeElement?.name;
  const scrolled = side.scrollTop;
  side.replaceChildren(...sidebar().flat(Infinity).filter(Boolean));
  side.scrollTop = scrolled;
  if (focused === "q") {
    const field = side.querySelector("[name=q]");
    field?.focus();
    field?.setSelectionRange(field.value.length, field.value.length);
  }
  document.body.classList.toggle("reading", state.episode !== null);
  document.body.classList.toggle("evaluation", run.kind === "evaluation");
  const pane = state.episode === null ? overview() : await episodePane(state.episode).catch(trouble);
  if (number === shown) main.replaceChildren(pane);
}

function trouble(error) {
  return h("p.trouble", { role: "alert" }, `This episode cannot be shown: ${error.message}`);
}

// --- keys ---------------------------------------------------------------------------------------------------------

const KEYS = {
  j: ["next episode", () => move(1)],
  k: ["previous episode", () => move(-1)],
  "]": ["next recorded step", () => moveStep(1)],
  "[": ["previous recorded step", () => moveStep(-1)],
  o: ["overview", () => go({ episode: null })],
  c: ["next colour of the tokens", nextColour],
  "/": ["search tasks", () => side.querySelector("[name=q]")?.focus()],
  d: ["light or dark", switchTheme],
  "?": ["these keys", () => help.showModal()],
};

/** The episode after or before this one in the list, or else in the adjoining step; undefined at the end. */
function neighbour(change) {
  const { places, isFlat } = listed();
  const now = places.indexOf(state.episode);
  const next = places[now < 0 ? (change > 0 ? 0 : places.length - 1) : now + change];
  const step = recordedSteps[recordedSteps.indexOf(state.step) + change];
  return next ?? (isFlat ? undefined : placesOfStep.get(step)?.at(change > 0 ? 0 : -1));
}

function move(change) {
  const next = neighbour(change);
  if (next !== undefined) go({ episode: next });
}

function pager() {
  const button = (change, sign, name) =>
    h("button", { disabled: neighbour(change) === undefined, onclick: () => move(change), "aria-label": name, title: `${name} (${change > 0 ? "j" : "k"})` }, sign);
  return h("nav.pager", { "aria-label": "episodes" },
    button(-1, "‹", "previous episode"), h("button.toall", { onclick: () => go({ episode: null }) }, "overview"), button(1, "›", "next episode"));
}

function moveStep(change) {
  const step = recordedSteps[recordedSteps.indexOf(state.step) + change];
  if (step !== undefined) go({ step });
}

function nextColour() {
  const names = Object.keys(COLOURS);
  go({ view: "tokens", color: names[(names.indexOf(state.color ?? "advantage") + 1) % names.length] });
}

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, select, dialog")) return;
  const view = state.episode === null ? null : viewsOf(brief(state.episode))[Number(event.key) - 1];
  if (view) return go({ view });
  const action = KEYS[event.key]?.[1];
  if (!action) return;
  event.preventDefault();
  action();
}

const help = h("dialog.help", { "aria-label": "keys", onclick: (event) => { if (event.target === help) help.close(); } },
  h("h2", {}, "Keys"),
  h("dl.facts", {}, Object.entries(KEYS).map(([key, [title]]) => [h("dt", {}, h("kbd", {}, key)), h("dd", {}, title)]),
    h("dt", {}, h("kbd", {}, "1"), "–", h("kbd", {}, String(Object.keys(VIEWS).length))), h("dd", {}, "views of an episode")),
  h("form", { method: "dialog" }, h("button", {}, "close")));

// --- the frame ----------------------------------------------------------------------------------------------------

function summary() {
  if (run.kind === "evaluation") {
    const figures = run.figures.filter(({ name }) => ["pass@1", "reward"].includes(name)).map(({ name, value }) => `${name} ${show(value)}`);
    const tasks = new Set(run.episodes.map((row) => row.group)).size;
    return [plural(run.episodes.length, "episode"), plural(tasks, "task"), ...figures].join(" · ");
  }
  const rewards = run.curves.find((curve) => curve.name === "reward")?.values.filter((reward) => reward !== null) || [];
  const change = rewards.length > 1 ? `reward ${show(rewards[0])} → ${show(rewards[rewards.length - 1])}` : "";
  return [plural(run.steps.length, "step"), plural(run.episodes.length, "recorded episode"), change].filter(Boolean).join(" · ");
}

function topBar() {
  return h("header.top", {},
    h("button.brand", { onclick: () => go({ episode: null }) }, h("h1", {}, run.title)),
    h("span.meta", { id: "summary" }, summary()),
    run.alarms.length > 0 && h("button.alarmcount", { onclick: () => go({ episode: null }) }, plural(run.alarms.length, "alarm")),
    follows && h("span.live", { id: "live" }, "live"),
    h("span.grow", {}),
    h("span.made", {}, "gymnast"),
    themeButton(),
    h("button.icon", { onclick: () => help.showModal(), "aria-label": "keys", title: "keys (?)" }, "?"));
}

let bar = topBar();
document.getElementById("app").replaceChildren(bar, h("div.frame", {}, side, main), tip, help);
window.addEventListener("popstate", () => { readState(); render(); });
window.addEventListener("hashchange", () => { readState(); render(); });
window.addEventListener("scroll", hideTip, { passive: true });
document.addEventListener("keydown", onKey);
if (!location.hash && run.telling !== null) history.replaceState(null, "", `#episode=${run.telling}`);
readState();
render();

if (follows) {
  keepAsking(async () => {
    if (!(await refresh())) return;
    const newBar = topBar();
    bar.replaceWith(newBar);
    bar = newBar;
    readState();
    await render();
  });
}
