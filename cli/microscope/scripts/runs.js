"use strict";

/** The page of several runs: a line for each leads to its own page. */
let all = JSON.parse(document.getElementById("index").textContent);
const follows = document.body.dataset.follows === "yes";
const SPARK = { width: 160, height: 36, edge: 3 };

/** The curve of the reward, without axes. */
function sparkline(values) {
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const { width, height, edge } = SPARK;
  const x = (index) => edge + (index / (values.length - 1)) * (width - 2 * edge);
  const y = (value) => (high > low ? edge + ((high - value) / (high - low)) * (height - 2 * edge) : height / 2);
  const points = values.map((value, index) => `${x(index).toFixed(1)},${y(value).toFixed(1)}`).join(" ");
  return svg("svg.spark", { viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", role: "img",
    "aria-label": `reward: from ${show(values[0])} to ${show(values[values.length - 1])}` },
  svg("polyline.curve", { points }));
}

function line(run) {
  const { curve } = run;
  const change = curve.length > 1 ? `${show(curve[0])} → ${show(curve[curve.length - 1])}` : show(curve[0]);
  const size = run.kind === "training" ? `${plural(run.steps, "step")} · ` : "";
  return h("li", {}, h("a.run", { href: all.links[run.name] },
    h("div.what", {}, h("strong", {}, run.name), h("span.kind", {}, run.kind),
      h("span.meta", {}, `${size}${plural(run.episodes, "episode")} · ${new Date(1000 * run.written).toLocaleString()}`)),
    h("div.spark", {}, curve.length > 1 && sparkline(curve)),
    h("div.numbers", {}, h("span.figure", {}, h("span.name", {}, "reward"), h("strong", {}, change)), run.success.map(interval)),
    h("div.alarms", {}, run.alarms > 0 && h("span.alarmcount", {}, plural(run.alarms, "alarm"))),
    h("p.meta", {}, `${run.reason[0].toUpperCase()}${run.reason.slice(1)}.`)));
}

function frame() {
  const kinds = [...Map.groupBy(all.runs, (run) => run.kind)].map(([kind, runs]) => plural(runs.length, kind));
  document.getElementById("app").replaceChildren(
    h("header.top", {}, h("h1", {}, all.title), h("span.meta", { id: "summary" }, kinds.join(" · ")),
      follows && h("span.live", { id: "live" }, "live"), h("span.grow", {}), h("span.made", {}, "gymnast"), themeButton()),
    h("main.main", { id: "main" }, h("ol.runs", {}, all.runs.map(line))));
}

document.body.classList.add("several");
frame();
if (follows) {
  keepAsking(async () => {
    const answer = await fetch(`index?since=${all.changes}`);
    if (answer.status !== 200) return;
    all = await answer.json();
    frame();
  });
}
