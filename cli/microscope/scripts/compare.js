"use strict";

const MOST_COLUMNS = 8;
const MOST_COMPARED = 64;

/** All members of the group side by side. */
async function compareGroup(own, place) {
  const others = groupOf(place).filter((member) => member !== place);
  if (!others.length) return h("p.calm", {}, "This episode has no other member of its group in the records.");
  const [leaves, first, columns] = await compare(own, place, others, (row) => `member ${row.member}`);
  return h("div.compare", {}, leaves, sideBySide(first, chosenFirst(columns).slice(0, MOST_COLUMNS - 1)));
}

/** The same task at other steps, and one of them beside this episode. */
async function compareSteps(own, place) {
  const { step, member } = brief(place);
  const bySteps = [...Map.groupBy(sameTask(place), (other) => brief(other).step)].sort(([one], [other]) => one - other);
  const history = h("div.history", {}, bySteps.map(([number, members]) =>
    h("div.lane", { "aria-current": number === step ? "true" : null },
      h("span.step", {}, `step ${number}`),
      h("span.meta", {}, `reward ${show(mean(rewardsOf(members.map(brief))))}`),
      h("div.cells", {}, members.map(cell)))));
  const others = bySteps.filter(([number]) => number !== step)
    .map(([, members]) => members.find((other) => brief(other).member === member) ?? members[0]);
  if (!others.length) {
    return [history, h("p.calm", {}, "This task is recorded at this step only. Record more often (log_episodes_steps), or train on fewer tasks.")];
  }
  const [leaves, first, columns] = await compare(own, place, others, (row) => `step ${row.step}, member ${row.member}`);
  return [history, h("div.compare", {}, leaves, sideBySide(first, chosenFirst(columns).slice(0, 1)))];
}

function chosenFirst(columns) {
  return columns.toSorted((one, other) => (other.place === state.with) - (one.place === state.with));
}

/** A table of where other episodes leave this one, and the columns of `sideBySide`: this one's, and those of the others. */
async function compare(own, place, others, nameOf) {
  const shown = others.slice(0, MOST_COMPARED);
  const all = await Promise.all(shown.map(details));
  const inWords = [own, ...all].some(({ episode }) => !episode.traces.length);
  const column = (place, { episode }, name) => ({ place, row: brief(place), pieces: piecesOf(episode, inWords), name });
  const first = column(place, own, "this episode");
  const columns = shown.map((place, index) => column(place, all[index], nameOf(brief(place))));
  const choose = (place) => () => go({ with: place });
  const rows = columns.map(({ place, row, pieces, name }) =>
    h("tr", { "aria-current": place === state.with ? "true" : null, tabindex: 0, onclick: choose(place), onkeydown: onEnter(choose(place)) },
      h("th", { scope: "row" }, name), h("td", {}, show(row.reward)), h("td", {}, row.stop), h("td", {}, divergence(first.pieces, pieces, inWords))));
  const names = ["compare with", "reward", "stop", `first divergent ${inWords ? "word" : "token"}`];
  return [table("table.others", null, names, rows), first, columns];
}

/** The tokens of the first completion, or the words of the messages, which a policy without tokens has: `{key, text, sampled}`. */
function piecesOf(episode, inWords) {
  if (!inWords) {
    const { completion_ids: ids, mask } = episode.traces[0];
    return ids.map((id, place) => ({ key: id, text: textOfToken(id), sampled: mask[place] === 1 }));
  }
  const words = (texts, sampled) => (`${texts.filter(Boolean).join("\n")}\n`.match(/\S+\s*/g) || []).map((text) => ({ key: text, text, sampled }));
  return episode.turns.flatMap(({ message: answer, observation }) => [
    ...words([textOf(answer.content), ...(answer.tool_calls || []).map(writtenCall)], true),
    ...words(observation.map(({ content }) => textOf(content)), false),
  ]);
}

function writtenCall(call) {
  return `${call.function.name} ${textOfValue(call.function.arguments)}`;
}

/** The place of the first piece that differs; null if there is none. */
function divergentPlace(one, other) {
  const length = Math.max(one.length, other.length);
  for (let place = 0; place < length; place += 1) if (one[place]?.key !== other[place]?.key) return place;
  return null;
}

function divergence(one, other, inWords) {
  const place = divergentPlace(one, other);
  if (place === null) return `none: the same ${inWords ? "words" : "tokens"}`;
  const [here, there] = [one, other].map((pieces) => pieces[place]?.text.replaceAll("\n", "⏎") ?? "end");
  return [`${place}: `, h("code", {}, here), " here, ", h("code", {}, there), " there"];
}

const KEPT = 8; // common tokens that are shown before the first difference

/** This episode and others, from shortly before the first piece in which any of them differs from it. */
function sideBySide(first, others) {
  const places = others.map(({ pieces }) => divergentPlace(first.pieces, pieces));
  const known = places.filter((at) => at !== null);
  const start = known.length ? Math.max(0, smallest(known) - KEPT) : 0;
  return h("div.columns", {}, tokenColumn(first, start, known.length ? smallest(known) : null),
    others.map((other, index) => tokenColumn(other, start, places[index])));
}

/** The pieces of one column from `start` on; the one at `at` is the first that differs. */
function tokenColumn({ place, row, pieces, name }, start, at) {
  const spans = pieces.slice(start).map(({ text, sampled }, index) => {
    const here = start + index;
    const classes = ["span", "tok", sampled ? "" : "given", at !== null && here < at ? "common" : "", here === at ? "divergent" : ""];
    return h(classes.filter(Boolean).join("."), {}, visible(text));
  });
  return h("section.column", {},
    h("header", {}, h("strong", {}, name), h("span.meta", {}, `reward ${show(row.reward)} · ${row.stop}`),
      place !== state.episode && h("button.link", { onclick: () => go({ episode: place, with: null }) }, "open")),
    start > 0 && h("p.fold", {}, `${plural(start, "piece")} in common`),
    h("div.strip", {}, spans, at !== null && at >= pieces.length && h("span.tok.divergent", {}, "end")));
}
