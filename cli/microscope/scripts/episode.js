"use strict";

const VIEWS = {
  transcript: { title: "Transcript", make: transcript },
  tokens: { title: "Tokens", make: tokenStrip },
  why: { title: "Why", make: why },
  timeline: { title: "Timeline", make: timeline },
  group: { title: "Group", make: compareGroup },
  steps: { title: "Across steps", make: compareSteps },
};

/** The pane of one episode. */
async function episodePane(place) {
  const row = brief(place);
  const whole = await details(place);
  const view = VIEWS[state.view] ? state.view : "transcript";
  const tabs = h("nav.tabs", { role: "tablist", "aria-label": "views of the episode" }, Object.entries(VIEWS).map(([name, { title }], index) =>
    h("button", { role: "tab", "aria-selected": String(name === view), "aria-controls": "view", title: `key ${index + 1}`, onclick: () => go({ view: name }) }, title)));
  return h("section.episodepane", {},
    header(row, whole.episode), tabs,
    h("div#view", { id: "view", role: "tabpanel", "data-view": view }, await VIEWS[view].make(whole, place)));
}

function header(row, episode) {
  const fact = (name, value, kind) => h(kind ? `span.fact.${kind}` : "span.fact", {}, h("span.name", {}, name), value);
  return h("header.episodehead", {},
    h("div.where", {},
      h("button.link", { onclick: () => go({ episode: null }) }, "overview"), " / ",
      h("button.link", { onclick: () => go({ step: row.step, episode: null }) }, `step ${row.step}`), ` / ${row.group} / member ${row.member}`),
    h("h2", {}, row.question || row.task),
    h("div.facts", {},
      h("span.fact", {}, h("span.name", {}, "reward"), h("span.dot", { style: { "--fill": rewardColor(row.reward, rewardRange) } }), show(row.reward)),
      fact("stop", row.stop, row.failed ? "bad" : row.truncated ? "warn" : ""),
      fact("turns", show(row.turns)), fact("tokens", show(row.tokens)), fact("time", seconds(row.seconds)),
      row.errors > 0 && fact("tool errors", show(row.errors), "warn"),
      Object.entries(episode.metrics).map(([name, value]) => fact(name, show(value)))));
}
