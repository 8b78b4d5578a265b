"use strict";

/** The page without an episode: alarms, curves, recorded steps. */
function overview() {
  return h("section.overview", {},
    run.telling !== null && reason(h("button.link", { onclick: () => go({ episode: run.telling, view: null }) }, "See the episode that shows it.")),
    alarmList(), curves(), stepTable());
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
  return h("div.curves", {}, run.curves.map((curve) => chart({ steps: run.steps, ...curve }, options)));
}

/** The recorded step that is nearest to a step. */
function nearestStep(step) {
  return recordedSteps.reduce((best, each) => (Math.abs(each - step) < Math.abs(best - step) ? each : best), recordedSteps[0]);
}

function stepTable() {
  if (!run.count) return h("p.calm", {}, "No episode is recorded: set log_episodes_steps in the training's configuration.");
  const cells = recordedSteps.map((step) => {
    const rows = placesOfStep.get(step).map(brief);
    const rewards = rows.map((row) => row.reward).filter((each) => each !== null);
    const share = (test) => percent(rows.filter(test).length / rows.length);
    return h("tr", { tabindex: 0, onclick: () => go({ step, episode: null }), onkeydown: onEnter(() => go({ step })) },
      h("th", { scope: "row" }, String(step)), h("td", {}, show(rows.length)), h("td", {}, show(mean(rewards))),
      h("td", {}, `${groupsWithSpread(rows)} of ${new Set(rows.map((row) => row.group)).size}`),
      h("td", {}, share((row) => row.failed)), h("td", {}, share((row) => row.truncated)),
      h("td", {}, show(sum(rows.map((row) => row.errors)))), h("td", {}, show(mean(rows.map((row) => row.tokens)))));
  });
  const names = ["step", "episodes", "reward", "groups with spread", "failed", "truncated", "tool errors", "tokens"];
  return h("div.scroll", {}, h("table.steps", {}, h("caption", {}, "Recorded steps"),
    h("thead", {}, h("tr", {}, names.map((name) => h("th", { scope: "col" }, name)))), h("tbody", {}, cells)));
}

function groupsWithSpread(rows) {
  const groups = Map.groupBy(rows.filter((row) => row.reward !== null), (row) => row.group);
  return [...groups.values()].filter((members) => new Set(members.map((row) => row.reward)).size > 1).length;
}

function onEnter(action) {
  return (event) => { if (event.key === "Enter") action(); };
}
