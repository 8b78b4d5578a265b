"use strict";

/** The page without an episode: alarms, curves, recorded steps. */
function overview() {
  return h("section.overview", {},
    run.telling !== null && reason(h("button.link", { onclick: () => go({ episode: run.telling, view: null }) }, "See the episode that shows it.")),
    run.figures.length > 0 && h("p.figures", {}, run.figures.map(interval)),
    alarmList(), curves(), run.kind === "evaluation" ? taskTable() : stepTable(), asked());
}

/** The likeliest reason why the reward is what it is. */
function reason(...more) {
  return h("p.reason", {}, h("strong", {}, "Why is the reward what it is? "), `${run.reason[0].toUpperCase()}${run.reason.slice(1)}. `, more);
}

function alarmList() {
  if (!run.alarms.length) return h("p.calm", {}, "No alarm: nothing in the records looks wrong.");
  return h("div.alarms", { role: "list" }, run.alarms.map((alarm) =>
    h("article.alarm", { role: "listitem" },
      h("span.kind", {}, alarm.kind),
      h("div", {},
        h("strong", {}, alarm.title),
        h("p", {}, alarm.cause),
        alarm.detail && h("details", {}, h("summary", {}, "traceback"), h("pre", {}, alarm.detail))),
      alarm.episode !== null
        ? h("button.link", { onclick: () => go({ episode: alarm.episode, view: null }) }, "see an episode")
        : alarm.step !== null && h("button.link", { onclick: () => go({ step: nearestStep(alarm.step) }) }, `step ${alarm.step}`))));
}

function curves() {
  const options = { marks: recordedSteps, selected: state.step, onstep: (step) => go({ step: nearestStep(step) }) };
  const shown = run.curves.filter((curve) => run.kind === "training" || curve.steps.length > 1);
  return shown.length > 0 && h("div.curves", {}, shown.map((curve) => chart({ steps: run.steps, ...curve }, options)));
}

/** The tasks of an evaluation, the worst first. */
function taskTable() {
  if (!run.episodes.length) return h("p.calm", {}, "No episode is over yet.");
  const knowsSuccess = run.episodes.some((row) => row.success !== null);
  const names = ["task", "episodes", knowsSuccess && "successes", "reward", "failed", "tool errors", "ends by"].filter(Boolean);
  const rows = worstTasks(placesOfStep.get(state.step)).map((members) => {
    const episodes = members.map(brief);
    const show1 = () => go({ episode: members[0] });
    const stops = [...new Set(episodes.map((row) => row.stop))].join(", ");
    return h("tr", { tabindex: 0, onclick: show1, onkeydown: onEnter(show1) },
      h("th.question", { scope: "row", title: episodes[0].group }, episodes[0].question || episodes[0].task), h("td", {}, show(episodes.length)),
      knowsSuccess && h("td", {}, show(episodes.filter((row) => row.success >= 1).length)),
      h("td", {}, show(mean(rewardsOf(episodes)))),
      h("td", {}, show(episodes.filter((row) => row.failed).length)), h("td", {}, show(sum(episodes.map((row) => row.errors)))), h("td", {}, stops));
  });
  return table("table.steps.tasks", "Tasks, the worst first", names, rows);
}

/** The settings of `gymnast eval`. */
function asked() {
  const known = Object.entries(run.asked).filter(([, value]) => value !== null);
  return known.length > 0 && facts(known.map(([name, value]) => [name, textOfValue(value)]), "dl.facts.asked");
}

/** The recorded step that is nearest to a step. */
function nearestStep(step) {
  return recordedSteps.reduce((best, recorded) => (Math.abs(recorded - step) < Math.abs(best - step) ? recorded : best), recordedSteps[0]);
}

function stepTable() {
  if (!run.episodes.length) return h("p.calm", {}, "No episode is recorded: set log_episodes_steps in the training's configuration.");
  const cells = recordedSteps.map((step) => {
    const rows = placesOfStep.get(step).map(brief);
    const share = (test) => percent(rows.filter(test).length / rows.length);
    return h("tr", { tabindex: 0, onclick: () => go({ step, episode: null }), onkeydown: onEnter(() => go({ step })) },
      h("th", { scope: "row" }, String(step)), h("td", {}, show(rows.length)), h("td", {}, show(mean(rewardsOf(rows)))),
      h("td", {}, `${groupsWithSpread(rows)} of ${new Set(rows.map((row) => row.group)).size}`),
      h("td", {}, share((row) => row.failed)), h("td", {}, share((row) => row.truncated)),
      h("td", {}, show(sum(rows.map((row) => row.errors)))), h("td", {}, show(mean(rows.map((row) => row.tokens)))));
  });
  const names = ["step", "episodes", "reward", "groups with spread", "failed", "truncated", "tool errors", "tokens"];
  return table("table.steps", "Recorded steps", names, cells);
}

function groupsWithSpread(rows) {
  const groups = Map.groupBy(rows.filter((row) => row.reward !== null), (row) => row.group);
  return [...groups.values()].filter((members) => new Set(members.map((row) => row.reward)).size > 1).length;
}

function onEnter(action) {
  return (event) => { if (event.key === "Enter") action(); };
}
