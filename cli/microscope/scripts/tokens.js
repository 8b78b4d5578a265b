"use strict";

const COLOURS = {
  mask: { title: "sampled", legend: "Filled: sampled by the model and learned from. Plain: written by the environment or the chat template." },
  logprob: { title: "log-probability", legend: "The stronger, the less likely the token was when it was sampled." },
  gap: { title: "generator–trainer gap", legend: "Trainer's minus generator's log-probability: blue = the trainer finds the token likelier, orange = less likely." },
  advantage: { title: "advantage", legend: "Blue: to be made likelier. Orange: to be made less likely." },
  influence: { title: "share of the gradient", legend: "|derivative of the loss by the token's log-probability|, relative to the largest in this episode." },
  cut: { title: "clipped or cut", legend: "Orange: the loss clipped the token, so it had no gradient. Striped: the correction of the mismatch cut it." },
};
const FULL_GAP = 0.5; // nats at which a gap has its full colour

/** The tokens of a completion with all that is known of each: a list of `{text, id, sampled, logprob, ...}`. */
function tokensOf(trace, number, learning) {
  const updates = learning.filter((line) => line.update !== undefined && line.trace === number);
  const update = updates[updates.length - 1];
  const vote = learning.find((line) => line.vote !== undefined);
  const advantages = vote?.advantages?.[number];
  const [clipped, cut] = ["clipped", "cut"].map((name) => new Set(updates.flatMap((line) => line[name] || [])));
  return trace.completion_ids.map((id, place) => {
    const sampled = trace.mask[place] === 1;
    const trainer = sampled ? update?.logprobs[place] : undefined;
    return {
      id, place, sampled, text: textOfToken(id),
      logprob: sampled ? trace.logprobs[place] : undefined,
      trainer, gap: trainer === undefined ? undefined : trainer - trace.logprobs[place],
      advantage: sampled ? (Array.isArray(advantages) ? advantages[place] : advantages) : undefined,
      influence: sampled ? update?.gradient[place] : undefined,
      clipped: clipped.has(place), cut: cut.has(place),
    };
  });
}

function textOfToken(id) {
  return run.tokens[id] ?? `⟨${id}⟩`;
}

function tokenStrip({ episode, learning }) {
  const usual = run.parts[part] === "training" ? "advantage" : "logprob";
  const colour = state.color && COLOURS[state.color] ? state.color : usual;
  const sampled = episode.traces.filter((trace) => trace.mask.includes(1));
  if (!episode.traces.length) return h("p.calm", {}, "The policy of this episode keeps no tokens.");
  const picker = h("div.row.chips", { role: "group", "aria-label": "colour of the tokens" },
    Object.entries(COLOURS).map(([name, { title }]) => h("button.chip", { "aria-pressed": String(name === colour), onclick: () => go({ color: name }) }, title)));
  const strips = episode.traces.map((trace, place) => {
    const tokens = tokensOf(trace, sampled.indexOf(trace), learning);
    const most = Math.max(largest(tokens.map((token) => Math.abs(token.influence || 0))), 1e-12);
    const known = tokens.map((token, index) => tokenSpan(token, colour, most, index));
    const strip = h("div.strip", { tabindex: -1 }, withImages(trace, trace.prompt_ids.length, known));
    strip.addEventListener("mouseover", (event) => showTip(event.target, tokens));
    strip.addEventListener("focusin", (event) => showTip(event.target, tokens));
    strip.addEventListener("click", (event) => showTip(event.target, tokens));
    strip.addEventListener("mouseleave", hideTip);
    strip.addEventListener("focusout", hideTip);
    const title = episode.traces.length > 1 ? `history ${place + 1} of ${episode.traces.length}` : "completion";
    return [
      h("details.prompt", {}, h("summary", {}, `prompt: ${plural(trace.prompt_ids.length, "token")}`), h("div.strip", {}, withImages(trace, 0, trace.prompt_ids.map((id) => h("span.tok.given", {}, visible(textOfToken(id))))))),
      h("h3", {}, `${title}: ${plural(trace.completion_ids.length, "token")}, ${show(sum(trace.mask))} sampled${trace.drift ? `, ${trace.drift} drifted` : ""}`),
      strip,
    ];
  });
  const updated = learning.some((line) => line.update !== undefined);
  const missing = !updated && ["gap", "influence", "cut"].includes(colour)
    && h("p.calm", {}, "No update is recorded for this episode: its advantages were 0, it did not count, or the records are of an older version.");
  return h("div.tokens", {}, picker, h("p.legend", {}, COLOURS[colour].legend), missing, strips);
}

/** Put one box in place of the tokens of each image; the first of these spans of tokens stands at `first`. */
function withImages(trace, first, spans) {
  for (const { start, length, image } of (trace.images || []).toReversed()) {
    if (start < first || start >= first + spans.length) continue;
    spans.splice(start - first, length, h("span.tok.given.image", {}, `${nameOfPicture(image)}, ${plural(length, "token")}`));
  }
  return spans;
}

/** Line breaks are seen, and still break the line. */
function visible(text) {
  return text.replaceAll("\n", "⏎\n");
}

function tokenSpan(token, colour, most, index) {
  const classes = token.sampled ? "span.tok" : "span.tok.given";
  const paint = token.sampled ? paintOf(token, colour, most) : null;
  const mark = token.sampled && colour === "cut" && token.cut ? ".striped" : "";
  return h(classes + mark, { "data-token": index, tabindex: token.sampled ? 0 : null, style: paint && { "background-color": paint } }, visible(token.text));
}

function paintOf(token, colour, most) {
  const tint = (name, share) => `color-mix(in srgb, var(--${name}) ${Math.round(55 * Math.min(1, share))}%, transparent)`;
  const twoSided = (value, full) => (value ? tint(value > 0 ? "more" : "less", 0.12 + 0.88 * Math.min(1, Math.abs(value) / full)) : null);
  switch (colour) {
    case "mask": return tint("accent", 0.4);
    case "logprob": return tint("less", -token.logprob / 5);
    case "gap": return token.gap === undefined ? null : tint(token.gap > 0 ? "more" : "less", Math.abs(token.gap) / FULL_GAP);
    case "advantage": return twoSided(token.advantage, 2);
    case "influence": return token.influence ? tint("accent", Math.abs(token.influence) / most) : null;
    case "cut": return token.clipped ? tint("less", 1) : token.cut ? tint("less", 0.4) : tint("accent", 0.12);
  }
  return null;
}

// --- the tooltip --------------------------------------------------------------------------------------------------

const tip = h("div.tip", { role: "tooltip", id: "tip", hidden: true });

function showTip(target, tokens) {
  const span = target.closest?.("[data-token]");
  if (!span) return hideTip();
  const token = tokens[Number(span.dataset.token)];
  const known = [
    ["token", `${JSON.stringify(token.text)} · id ${token.id} · place ${token.place}`],
    ["origin", token.sampled ? "sampled by the model" : "environment or chat template; not learned from"],
    ["generator", token.logprob === undefined ? null : `log p ${show(token.logprob)} · p ${percent(Math.exp(token.logprob))}`],
    ["trainer", token.trainer === undefined ? null : `log p ${show(token.trainer)} · gap ${signed(token.gap)}`],
    ["advantage", token.advantage === undefined || token.advantage === null ? null : signed(token.advantage)],
    ["∂loss/∂log p", token.influence === undefined ? null : signed(token.influence)],
    ["lost", token.clipped || token.cut ? [token.clipped && "clipped by the loss", token.cut && "cut by the correction"].filter(Boolean).join(", ") : null],
  ].filter(([, value]) => value !== null);
  tip.replaceChildren(facts(known, "dl"));
  tip.hidden = false;
  const box = span.getBoundingClientRect();
  const width = tip.offsetWidth;
  const left = Math.max(8, Math.min(box.left, document.documentElement.clientWidth - width - 8));
  const below = box.bottom + 6 + tip.offsetHeight < window.innerHeight;
  tip.style.left = `${left}px`;
  tip.style.top = `${below ? box.bottom + 6 : box.top - tip.offsetHeight - 6}px`;
}

function hideTip() {
  tip.hidden = true;
}
