"use strict";

/** The index of the run, and its episodes, which are inflated when they are looked at. */
let run = JSON.parse(document.getElementById("index").textContent);
let rewardRange;
let part; // of the run that is looked at, in `run.parts`: the training's rounds, or the evaluations of a data set
let recordedSteps; // of this part
let placesOfStep; // step -> places of its episodes in this part
let pullOfStep; // step -> the sum of the pulls of its episodes
const pictures = {}; // digest -> {uri, file}
const chunks = new Map(); // number -> promise of its episodes
const follows = document.body.dataset.follows === "yes";

function prepare() {
  pullOfStep = new Map();
  run.episodes.forEach((row, place) => {
    row.place = place;
    pullOfStep.set(row.step, (pullOfStep.get(row.step) || 0) + row.pull);
  });
  const rewards = rewardsOf(run.episodes);
  rewardRange = rewards.reduce(([low, high], reward) => [Math.min(low, reward), Math.max(high, reward)], [Infinity, -Infinity]);
  showPart(part in run.parts ? part : 0);
}

function showPart(number) {
  part = number;
  placesOfStep = Map.groupBy(placesWhere((row) => row.part === part), (place) => brief(place).step);
  recordedSteps = [...placesOfStep.keys()].sort((one, other) => one - other);
}
prepare();

/** Whether the part that is looked at is one evaluation, so that its step says nothing. */
function isOneEvaluation() {
  return run.kind === "evaluation" && recordedSteps.length < 2;
}

/** The brief facts of an episode. */
function brief(place) {
  return run.episodes[place];
}

/** The places of all episodes that a test accepts. */
function placesWhere(test) {
  return run.episodes.filter(test).map((row) => row.place);
}

/** The rewards of the episodes that have one. */
function rewardsOf(rows) {
  return rows.map((row) => row.reward).filter((reward) => reward !== null);
}

function groupOf(place) {
  const { step, group } = brief(place);
  return placesOfStep.get(step).filter((other) => brief(other).group === group).sort((one, other) => brief(one).member - brief(other).member);
}

function sameTask(place) {
  const own = brief(place);
  return placesWhere((row) => row.task === own.task && row.question === own.question && row.part === own.part);
}

/** The whole episode: `{episode, learning}`. */
async function details(place) {
  const number = Math.floor(place / run.chunk);
  if (!chunks.has(number)) chunks.set(number, follows ? fetchChunk(number) : embeddedChunk(number));
  const [episodes, shown] = await chunks.get(number);
  Object.assign(pictures, shown);
  const [line, learning] = episodes[place - number * run.chunk];
  return { episode: line.episode, learning };
}

async function fetchChunk(number) {
  const answer = await fetch(`chunk/${number}`);
  if (!answer.ok) throw new Error(`the server answered ${answer.status}`);
  return answer.json();
}

async function embeddedChunk(number) {
  const element = await elementOnceRead(`chunk-${number}`);
  const bytes = Uint8Array.from(atob(element.textContent), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

/** The element, which may stand further down in a file that the browser is still reading. */
async function elementOnceRead(id) {
  for (;;) {
    const element = document.getElementById(id);
    // An element that is followed by another one is complete.
    if (element && (element.nextElementSibling || document.readyState !== "loading")) return element;
    if (document.readyState !== "loading") throw new Error(`the file has no ${id}: it was cut off`);
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}

/** Take a new index from the server. Chunks that may have grown are fetched again. */
async function refresh() {
  const answer = await fetch(`index?since=${run.changes}`);
  if (answer.status !== 200) return false;
  run = await answer.json();
  chunks.clear();
  prepare();
  return true;
}
