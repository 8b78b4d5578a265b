"use strict";

const VOTES = {
  counts: "counts in the baseline",
  "counts only": "counts in the baseline, but a limit cut it and the option `truncated` says mask: no token is learned from",
  failed: "failed, so it has no reward and left its group",
  "no reward": "has no reward",
  "no tokens": "has no sampled token",
  left: "a limit cut it, and the option `truncated` says leave",
  alone: "fewer than two members of its group were left",
  dropped: "its group was replaced by a refill, or the correction rejected it",
};

/** Why this advantage: rewards, baseline, tokens, share of the gradient. */
async function why({ episode, learning }, place) {
  const members = groupOf(place);
  const vote = learning.find((line) => line.vote !== undefined);
  return h("div.why", {},
    rewardPanel(episode, vote), baselinePanel(members, place, vote), tokenPanel(episode, learning), gradientPanel(place, learning));
}

function panel(number, title, ...children) {
  return h("section.panel", {}, h("h3", {}, h("span.number", {}, String(number)), title), children);
}

function rewardPanel(episode, vote) {
  const parts = Object.entries(episode.reward_parts).map(([name, value]) => [name === "environment" ? "environment" : `reward function ${name}`, show(value)]);
  const turns = episode.turns.map((turn, index) => [`turn ${index + 1}`, turn.reward]).filter(([, value]) => value);
  const charged = vote?.reward !== undefined && Math.abs(vote.reward - episode.reward) > 1e-9;
  return panel(1, `The reward is ${show(episode.reward)}`,
    facts([...parts, ...turns.map(([name, value]) => [`of it, ${name}`, signed(value)]), charged && ["after the KL was charged", show(vote.reward)]]),
    episode.reward === null && h("p", {}, episode.failure ? "A failed episode is never scored." : "Nothing rewarded this episode."));
}

function baselinePanel(members, place, vote) {
  const rows = members.map(brief);
  const voters = rows.filter((row) => row.vote === null ? row.reward !== null : row.vote.startsWith("counts"));
  const rewards = voters.map((row) => row.reward);
  const centre = mean(rewards);
  const deviation = rewards.length > 1 ? Math.sqrt(sum(rewards.map((reward) => (reward - centre) ** 2)) / (rewards.length - 1)) : 0;
  const votes = rows.map((row) => h("tr", { "aria-current": row.place === place ? "true" : null },
    h("td", {}, cell(row.place)), h("td", {}, show(row.reward)), h("td", {}, VOTES[row.vote] || "not recorded")));
  return panel(2, `${show(voters.length)} of ${plural(rows.length, "member")} vote in the baseline`,
    table("table", null, ["member", "reward", "vote"], votes),
    facts([["mean of the voters", show(centre)], ["standard deviation", show(deviation)], ["estimator", estimatorText()], ["advantage", advantageText(vote)]]),
    h("p.equation", {}, equation(vote, rewards, centre, deviation)));
}

function estimatorText() {
  const { advantage_estimator: estimator, scale_rewards: scale, credit } = run.settings;
  return estimator ? `${estimator}, scaled by ${scale}, credit by ${credit}` : "not recorded";
}

function advantageText(vote) {
  if (!vote?.advantages) return "none";
  const values = [...new Set(vote.advantages.flat().filter((advantage) => advantage !== 0))];
  return values.length ? values.slice(0, 6).map(signed).join(", ") + (values.length > 6 ? ", …" : "") : "0: this episode teaches nothing";
}

/** The advantage by hand, where the estimator makes it from nothing but the group's rewards. */
function equation(vote, rewards, centre, deviation) {
  const { advantage_estimator: estimator, scale_rewards: scale, credit } = run.settings;
  if (!vote?.advantages || credit !== "episode" || rewards.length < 2) return "";
  if (estimator === "grpo" && scale === "group") {
    return `(${show(vote.reward)} ${MINUS} ${show(centre)}) / (${show(deviation)} + 0.0001) = ${signed((vote.reward - centre) / (deviation + 1e-4))}`;
  }
  if (scale !== "none") return "";
  if (estimator === "grpo") return `${show(vote.reward)} ${MINUS} ${show(centre)} = ${signed(vote.reward - centre)}`;
  if (estimator !== "rloo") return "";
  const others = (sum(rewards) - vote.reward) / (rewards.length - 1);
  return `${show(vote.reward)} ${MINUS} ${show(others)}, the mean of the others = ${signed(vote.reward - others)}`;
}

function tokenPanel(episode, learning) {
  const traces = episode.traces.filter((trace) => trace.mask.includes(1));
  const tokens = traces.flatMap((trace, number) => tokensOf(trace, number, learning)).filter((token) => token.sampled);
  const gaps = tokens.map((token) => token.gap).filter((gap) => gap !== undefined);
  const count = (test) => show(tokens.filter(test).length);
  const drifted = sum(episode.traces.map((trace) => trace.drift));
  return panel(3, `${plural(tokens.length, "token")} could be learned from`, facts([
    ["clipped by the loss", count((token) => token.clipped)],
    ["cut by the correction", count((token) => token.cut)],
    ["drifted", show(drifted)],
    gaps.length ? ["mean |gap| to the trainer", show(mean(gaps.map(Math.abs)))] : null,
    gaps.length ? ["largest |gap|", show(largest(gaps.map(Math.abs)))] : null,
  ]));
}

function gradientPanel(place, learning) {
  const updates = learning.filter((line) => line.update !== undefined);
  const steps = [...new Set(updates.map((line) => line.update))];
  const text = updates.length
    ? `It took part in optimiser ${steps.length > 1 ? "steps" : "step"} ${steps.join(", ")}.`
    : "It took part in no recorded update: a sample whose advantages are 0 skips the forward and the backward pass.";
  return panel(4, `Its share of the step's gradient is ${percent(shareOfStep(place))}`,
    h("p", {}, `${text} The share is that of Σ |∂loss/∂log p| over the loss tokens of this step's recorded episodes; an equal share would be ${percent(1 / placesOfStep.get(brief(place).step).length)}.`));
}
