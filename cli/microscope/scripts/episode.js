"use strict";

const VIEWS = {
  transcript: { title: "Transcript", make: transcript },
  tokens: { title: "Tokens", make: tokenStrip },
  why: { title: "Why", make: why },
  timeline: { title: "Timeline", make: timeline },
  group: { title: "Group", make: compareGroup },
  steps: { title: "Across steps", make: compareSteps },
};

/** The names of the views of an episode; nothing was learned from one of an evaluation. */
function viewsOf(row) {
  return Object.keys(VIEWS).filter((name) => (name !== "why" || row.trained) && (name !== "steps" || !isOneEvaluation()));
}

/** The pane of one episode. */
async function episodePane(place) {
  const row = brief(place);
  const whole = await details(place);
  const names = viewsOf(row);
  const view = names.includes(state.view) ? state.view : "transcript";
  const tabs = h("nav.tabs", { role: "tablist", "aria-label": "views of the episode" }, names.map((name, index) =>
    h("button", { role: "tab", "aria-selected": String(name === view), "aria-controls": "view", title: `key ${index + 1}`, onclick: () => go({ view: name }) }, VIEWS[name].title)));
  return h("section.episodepane", {},
    place === run.telling && reason("This episode shows it."),
    header(row, whole.episode), tabs,
    h("div#view", { id: "view", role: "tabpanel", "data-view": view }, await VIEWS[view].make(whole, place)),
    pager());
}

function header(row, episode) {
  const fact = (name, value, kind) => h(kind ? `span.fact.${kind}` : "span.fact", {}, h("span.name", {}, name), value);
  return h("header.episodehead", {},
    h("div.where", {},
      h("button.link", { onclick: () => go({ episode: null }) }, "overview"), " / ",
      !isOneEvaluation() && [h("button.link", { onclick: () => go({ step: row.step, episode: null }) }, stepName(row.step)), " / "],
      `${row.group} / member ${row.member}`),
    h("h2", {}, row.question || row.task),
    h("div.facts", {},
      h("span.fact", {}, h("span.name", {}, "reward"), h("span.dot", { style: { "--fill": rewardColor(row.reward, rewardRange) } }), show(row.reward)),
      fact("stop", row.stop, row.failed ? "bad" : row.truncated ? "warn" : ""),
      fact("turns", show(row.turns)), fact("tokens", show(row.tokens)), fact("time", seconds(row.seconds)),
      row.errors > 0 && fact("tool errors", show(row.errors), "warn"),
      Object.entries(episode.metrics).map(([name, value]) => fact(name, show(value)))),
    answers(episode));
}

/** The right answer, if a column of the task's row has it, beside the one that was given. */
function answers(episode) {
  const { row } = episode.spec.task;
  const column = run.expected.find((name) => (row[name] ?? null) !== null);
  if (column === undefined) return null;
  const answer = (name, value, kind) => h(`div.answer${kind}`, {}, h("span.role", {}, name), h("pre", {}, value));
  return h("div.answers", { style: { "--fill": rewardColor(episode.reward, rewardRange) } },
    answer("expected", textOfValue(row[column]), ""), answer("given", givenBy(episode) ?? "nothing", ".judged"));
}

/** The arguments of the final tool's call, also of one by code, or else the text of the last answer; null without an answer. */
function givenBy(episode) {
  const turn = episode.turns.at(-1);
  if (!turn) return null;
  const final = turn.tool_calls.findIndex((call) => call.ends_episode);
  if (final < 0) return textOf(turn.message.content);
  const fromCode = turn.tool_calls[final].inside?.find((call) => call.ends_episode);
  const { name, arguments: given } = fromCode ?? turn.message.tool_calls[final].function;
  if (given === null || typeof given !== "object") return String(given);
  const values = Object.entries(given);
  if (values.length === 1) return textOfValue(values[0][1]);
  return values.map(([key, value]) => `${key}=${JSON.stringify(value)}`).join(", ") || `${name}()`;
}

function textOfValue(value) {
  return typeof value === "string" ? value : JSON.stringify(value);
}
