"use strict";

const LANES = { wait: "waiting", generation: "generation", environment: "environment", tool: "tool" };

/** The bars of an episode: `{kind, from, to, title}` in seconds since it began. */
function barsOf(episode) {
  const bars = [];
  let now = 0;
  for (const [index, turn] of episode.turns.entries()) {
    const from = turn.began || now; // records of an older version have no times: turns then follow each other
    const answered = from + turn.generation_seconds;
    now = answered + turn.environment_seconds;
    const waited = turn.waiting_seconds || 0;
    if (waited) bars.push({ kind: "wait", from, to: from + waited, title: `turn ${index + 1}: waited ${seconds(waited)} for the generator` });
    bars.push({ kind: "generation", from: from + waited, to: answered, title: `turn ${index + 1}: ${plural(turn.num_tokens, "token")} in ${seconds(turn.generation_seconds - waited)}` });
    if (turn.environment_seconds) bars.push({ kind: "environment", from: answered, to: now, title: `turn ${index + 1}: environment ${seconds(turn.environment_seconds)}` });
    let start = answered;
    for (const call of turn.tool_calls) {
      const end = Math.min(start + call.seconds, now);
      bars.push({ kind: "tool", from: start, to: end, title: `${call.name}: ${call.outcome}, ${seconds(call.seconds)}`, bad: !["ok", "not_run"].includes(call.outcome) });
      start = end;
    }
  }
  return bars;
}

/** The group's episodes on one axis of time. */
async function timeline({ episode }, place) {
  const members = groupOf(place);
  const all = await Promise.all(members.map(details));
  const began = all.map(({ episode }) => episode.began || 0);
  const origin = smallest(began);
  const end = Math.max(largest(all.map(({ episode }, index) => began[index] - origin + episode.seconds)), 1e-9);
  const rows = members.map((member, index) => {
    const own = all[index].episode;
    const offset = began[index] - origin;
    const bar = ({ kind, from, to, title, bad }) =>
      h(`span.bar.${kind}${bad ? ".bad" : ""}`, { title, style: { left: `${(100 * (offset + from)) / end}%`, width: `${(100 * Math.max(to - from, 0)) / end}%` } });
    return h("div.lane", { "aria-current": member === place ? "true" : null },
      cell(member),
      h("div.track", {},
        offset > 0 && bar({ kind: "wait", from: -offset, to: 0, title: `waited ${seconds(offset)} after the first of the group` }),
        h("span.bar.life", { style: { left: `${(100 * offset) / end}%`, width: `${(100 * own.seconds) / end}%` } }),
        barsOf(own).map(bar)),
      h("span.meta", {}, seconds(own.seconds)));
  });
  const waited = sum(episode.turns.map((turn) => turn.waiting_seconds || 0));
  const generation = sum(episode.turns.map((turn) => turn.generation_seconds)) - waited;
  const environment = sum(episode.turns.map((turn) => turn.environment_seconds));
  const tools = sum(episode.turns.flatMap((turn) => turn.tool_calls.map((call) => call.seconds)));
  const share = (value) => `${seconds(value)} (${percent(value / (episode.seconds || 1))})`;
  return h("div.timeline", {},
    h("p.legend", {}, Object.entries(LANES).map(([kind, title]) => h("span.key", {}, h(`span.bar.${kind}`, {}), title))),
    rows,
    h("div.axis", {}, h("span", {}, "0"), h("span", {}, seconds(end / 2)), h("span", {}, seconds(end))),
    facts([
      ["waiting for the generator", share(waited)],
      ["generation", share(generation)],
      ["environment", share(environment)],
      ["tools, in the environment", share(tools)],
      ["start, reset and end", share(Math.max(0, episode.seconds - waited - generation - environment))],
    ]),
    slowest(episode));
}

function slowest(episode) {
  const calls = episode.turns.flatMap((turn, index) => turn.tool_calls.map((call) => ({ ...call, turn: index + 1 })));
  if (!calls.length) return null;
  const rows = calls.sort((one, other) => other.seconds - one.seconds).slice(0, 8).map((call) =>
    h("tr", {}, h("td", {}, String(call.turn)), h("th", { scope: "row" }, call.name), h("td", {}, call.outcome), h("td", {}, seconds(call.seconds))));
  return table("table", "Slowest calls", ["turn", "tool", "outcome", "time"], rows);
}
