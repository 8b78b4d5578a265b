"use strict";

const MOST_COLUMNS = 8;
const MOST_COMPARED = 64;

/** All members of the group side by side. */
async function compareGroup(own, place) {
  const others = groupOf(place).filter((each) => each !== place);
  if (!others.length) return h("p.calm", {}, "This episode has no other member of its group in the records.");
  const [table, columns] = await compare(own, place, others, (row) => `member ${row.member}`);
  return h("div.compare", {}, table, sideBySide(own, place, chosenFirst(columns).slice(0, MOST_COLUMNS - 1)));
}

/** The same task at other steps, and one of them beside this episode. */
async function compareSteps(own, place) {
  const { step, member, reward } = run.episodes;
  const bySteps = [...Map.groupBy(sameTask(place), (each) => step[each])].sort(([one], [other]) => one - other);
  const history = h("div.history", {}, bySteps.map(([each, members]) =>
    h("div.lane", { "aria-current": each === step[place] ? "true" : null },
      h("span.step", {}, `step ${each}`),
      h("span.meta", {}, `reward ${show(mean(members.map((one) => reward[one]).filter((one) => one !== null)))}`),
      h("div.cells", {}, members.map(cell)))));
  const others = bySteps.filter(([each]) => each !== step[place])
    .map(([, members]) => members.find((each) => member[each] === member[place]) ?? members[0]);
  if (!others.length) {
    return [history, h("p.calm", {}, "This task is recorded at this step only. Record more often (log_episodes_steps), or train on fewer tasks.")];
  }
  const [table, columns] = await compare(own, place, others, (row) => `step ${row.step}, member ${row.member}`);
  return [history, h("div.compare", {}, table, sideBySide(own, place, chosenFirst(columns).slice(0, 1)))];
}

function chosenFirst(columns) {
  return columns.toSorted((one, other) => (other.place === state.with) - (one.place === state.with));
}

/** A table of where other episodes leave this one, and the columns of `sideBySide`. */
async function compare(own, place, others, nameOf) {
  const shown = others.slice(0, MOST_COMPARED);
  const all = await Promise.all(shown.map(details));
  const columns = shown.map((each, index) => ({ place: each, row: brief(each), episode: all[index].episode, name: nameOf(brief(each)) }));
  const choose = (each) => () => go({ with: each });
  const rows = columns.map(({ place: each, row, episode, name }) =>
    h("tr", { "aria-current": each === state.with ? "true" : null, tabindex: 0, onclick: choose(each), onkeydown: onEnter(choose(each)) },
      h("th", { scope: "row" }, name), h("td", {}, show(row.reward)), h("td", {}, row.stop), h("td", {}, divergence(own.episode, episode))));
  const head = ["compare with", "reward", "stop", "first divergent token"].map((name) => h("th", { scope: "col" }, name));
  return [h("div.scroll", {}, h("table.others", {}, h("thead", {}, h("tr", {}, head)), h("tbody", {}, rows))), columns];
}

/** The place of the first token that differs in the first completions; null if there is none. */
function divergentPlace(one, other) {
  const [ids, otherIds] = [one, other].map((each) => each.traces[0]?.completion_ids || []);
  const length = Math.max(ids.length, otherIds.length);
  for (let place = 0; place < length; place += 1) if (ids[place] !== otherIds[place]) return place;
  return null;
}

function divergence(one, other) {
  const place = divergentPlace(one, other);
  if (place === null) return "none: the same tokens";
  const [here, there] = [one, other].map((each) => tokenName(each.traces[0]?.completion_ids[place]));
  return [`${place}: `, h("code", {}, here), " here, ", h("code", {}, there), " there"];
}

function tokenName(id) {
  return id === undefined ? "end" : textOfToken(id).replaceAll("\n", "⏎");
}

const KEPT = 8; // common tokens that are shown before the first difference

/** This episode and others, from shortly before the first token in which any of them differs from it. */
function sideBySide(own, place, others) {
  const places = others.map(({ episode }) => divergentPlace(own.episode, episode));
  const known = places.filter((at) => at !== null);
  const start = known.length ? Math.max(0, smallest(known) - KEPT) : 0;
  const first = { place, row: brief(place), episode: own.episode, name: "this episode" };
  return h("div.columns", {}, tokenColumn(first, start, known.length ? smallest(known) : null),
    others.map((other, index) => tokenColumn(other, start, places[index])));
}

/** The tokens of one column from `start` on; the one at `at` is the first that differs. */
function tokenColumn({ place, row, episode, name }, start, at) {
  const { completion_ids: ids, mask } = episode.traces[0] || { completion_ids: [], mask: [] };
  const spans = ids.slice(start).map((id, index) => {
    const here = start + index;
    const classes = ["span", "tok", mask[here] ? "" : "given", at !== null && here < at ? "common" : "", here === at ? "divergent" : ""];
    return h(classes.filter(Boolean).join("."), {}, visible(textOfToken(id)));
  });
  return h("section.column", {},
    h("header", {}, h("strong", {}, name), h("span.meta", {}, `reward ${show(row.reward)} · ${row.stop}`),
      place !== state.episode && h("button.link", { onclick: () => go({ episode: place, with: null }) }, "open")),
    start > 0 && h("p.fold", {}, `${plural(start, "token")} in common`),
    h("div.strip", {}, spans, at !== null && at >= ids.length && h("span.tok.divergent", {}, "end")));
}
