"use strict";

/** Group members, or episodes of the same task, beside this one. */
async function compareGroup(own, place) {
  const others = groupOf(place).filter((each) => each !== place);
  return compare(own, place, others, "This episode has no other member of its group in the records.", (row) => `member ${row.member}`);
}

async function compareSteps(own, place) {
  const others = sameTask(place).filter((each) => run.episodes.step[each] !== run.episodes.step[place]);
  const bySteps = Map.groupBy(others, (each) => run.episodes.step[each]);
  const member = run.episodes.member[place];
  const chosen = [...bySteps.values()].map((each) => each.find((other) => run.episodes.member[other] === member) ?? each[0]);
  const history = h("div.history", {}, [...Map.groupBy(sameTask(place), (each) => run.episodes.step[each])].sort(([one], [other]) => one - other)
    .map(([step, members]) => h("div.lane", { "aria-current": step === run.episodes.step[place] ? "true" : null },
      h("span.step", {}, `step ${step}`), h("span.meta", {}, `reward ${show(mean(members.map((each) => run.episodes.reward[each]).filter((each) => each !== null)))}`),
      h("div.cells", {}, members.map(cell)))));
  const none = "This task is recorded at this step only. Record more often (log_episodes_steps), or train on fewer tasks.";
  return [history, await compare(own, place, chosen, none, (row) => `step ${row.step}, member ${row.member}`)];
}

async function compare(own, place, others, none, nameOf) {
  if (!others.length) return h("p.calm", {}, none);
  const chosen = others.includes(state.with) ? state.with : others[0];
  const rows = others.slice(0, 64);
  const all = await Promise.all(rows.map(details));
  const table = h("div.scroll", {}, h("table.others", {}, h("thead", {}, h("tr", {}, ["compare with", "reward", "stop", "first divergent token"].map((name) => h("th", { scope: "col" }, name)))),
    h("tbody", {}, rows.map((each, index) => {
      const row = brief(each);
      return h("tr", { "aria-current": each === chosen ? "true" : null, tabindex: 0, onclick: () => go({ with: each }), onkeydown: onEnter(() => go({ with: each })) },
        h("th", { scope: "row" }, nameOf(row)), h("td", {}, show(row.reward)), h("td", {}, row.stop), h("td", {}, divergence(own.episode, all[index].episode)));
    }))));
  const other = await details(chosen);
  return h("div.compare", {}, table, sideBySide(own, place, other, chosen, nameOf));
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
  return id === undefined ? "end" : JSON.stringify(textOfToken(id)).slice(1, -1);
}

const KEPT = 8; // common tokens that are shown before the first difference

function sideBySide(own, place, other, otherPlace, nameOf) {
  const at = divergentPlace(own.episode, other.episode);
  const column = (each, where) => {
    const row = brief(where);
    const ids = each.episode.traces[0]?.completion_ids || [];
    const mask = each.episode.traces[0]?.mask || [];
    const start = at === null ? 0 : Math.max(0, at - KEPT);
    const spans = ids.slice(start).map((id, index) => {
      const here = start + index;
      const classes = ["tok", mask[here] ? "" : "given", at !== null && here < at ? "common" : "", here === at ? "divergent" : ""].filter(Boolean);
      return h(`span.${classes.join(".")}`, {}, visible(textOfToken(id)));
    });
    return h("section.column", {},
      h("header", {}, h("strong", {}, where === place ? "this episode" : nameOf(row)), h("span.meta", {}, `reward ${show(row.reward)} · ${row.stop}`),
        where !== place && h("button.link", { onclick: () => go({ episode: where, with: null }) }, "open")),
      start > 0 && h("p.fold", {}, `${plural(start, "token")} in common`),
      h("div.strip", {}, spans, at !== null && at >= ids.length && h("span.tok.divergent", {}, "end")));
  };
  return h("div.columns", {}, column(own, place), column(other, otherPlace));
}
