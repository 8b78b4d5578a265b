"use strict";

const CHART = { width: 300, height: 84, edge: 3 };

/** Round numbers from below `low` to above `high`, about `count` of them; `least` is the smallest distance. */
function ticks(low, high, count, least = 0) {
  const rough = Math.max((high - low) / count, least, 1e-12);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = Math.max([1, 2, 5, 10].find((factor) => factor * power >= rough * 0.999) * power, least);
  const first = Math.floor(low / step + 1e-9);
  const last = Math.max(Math.ceil(high / step - 1e-9), first + 1);
  return Array.from({ length: last - first + 1 }, (_, index) => Number(((first + index) * step).toPrecision(12)));
}

/** The ends of the axis of values: those of a share are 0 and 1, and others begin at 0 if that is near. */
function rangeOf(name, low, high) {
  const isShare = /success|frac_|pass@|failure_frequency|clipped_ratio/.test(name) && low >= 0 && high <= 1;
  if (isShare) return [0, 1];
  if (low === high) return [Math.min(0, low), Math.max(0, high) || Number(low === 0)];
  return [low > 0 && low < high / 2 ? 0 : low, high];
}

/** A curve over steps with its axes; `onstep` is called with the step that was clicked. */
function chart({ name, title, values, steps }, { onstep, marks = [], selected = null, height = CHART.height } = {}) {
  const known = values.map((value, index) => [steps[index], value]).filter(([, value]) => value !== null);
  if (!known.length) return null;
  const xs = known.map(([step]) => step);
  const ys = known.map(([, value]) => value);
  const [first, last] = [xs[0], xs[xs.length - 1]];
  const levels = ticks(...rangeOf(name, smallest(ys), largest(ys)), 2);
  const [low, high] = [levels[0], levels[levels.length - 1]];
  const across = (step) => (last > first ? (step - first) / (last - first) : 0.5);
  const x = (step) => CHART.edge + across(step) * (CHART.width - 2 * CHART.edge);
  const y = (value) => height - CHART.edge - ((value - low) / (high - low)) * (height - 2 * CHART.edge);
  const line = known.map(([step, value]) => `${x(step).toFixed(1)},${y(value).toFixed(1)}`).join(" ");
  const valueAt = new Map(known);
  const readout = h("span.value", {}, show(ys[ys.length - 1]));
  const cursor = svg("line.cursor", { y1: 0, y2: height, visibility: "hidden" });
  const stepAt = (event) => {
    const box = drawing.getBoundingClientRect();
    const wanted = first + ((event.clientX - box.left) / box.width) * (last - first);
    return xs.reduce((best, x) => (Math.abs(x - wanted) < Math.abs(best - wanted) ? x : best));
  };
  const drawing = svg(
    "svg",
    {
      viewBox: `0 0 ${CHART.width} ${height}`, preserveAspectRatio: "none", role: "img",
      "aria-label": `${title}: from ${show(ys[0])} to ${show(ys[ys.length - 1])} in ${xs.length} steps`,
      onmousemove: (event) => {
        const step = stepAt(event);
        cursor.setAttribute("x1", x(step));
        cursor.setAttribute("x2", x(step));
        cursor.setAttribute("visibility", "visible");
        readout.textContent = `${show(valueAt.get(step))} at step ${step}`;
      },
      onmouseleave: () => {
        cursor.setAttribute("visibility", "hidden");
        readout.textContent = show(ys[ys.length - 1]);
      },
      onclick: onstep ? (event) => onstep(stepAt(event)) : null,
    },
    levels.map((level) => svg("line.grid", { x1: 0, x2: CHART.width, y1: y(level), y2: y(level) })),
    svg("polygon.area", { points: `${x(first)},${y(low)} ${line} ${x(last)},${y(low)}` }),
    svg("polyline.curve", { points: line }),
    known.length === 1 && svg("line.curve.dot", { x1: x(first), x2: x(first), y1: y(ys[0]), y2: y(ys[0]) }),
    selected !== null && selected >= first && selected <= last && svg("line.chosen", { x1: x(selected), x2: x(selected), y1: 0, y2: height }),
    marks.filter((step) => valueAt.has(step)).map((step) =>
      svg(step === selected ? "line.mark.now" : "line.mark", { x1: x(step), x2: x(step), y1: height - 5, y2: height })),
    cursor,
  );
  const percentOf = (share) => `${(100 * share).toFixed(2)}%`;
  const places = last > first ? ticks(first, last, 4, 1).filter((step) => step > first && step < last) : [];
  const numbers = [first, ...places.filter((step) => across(step) > 0.18 && across(step) < 0.86), ...(last > first ? [last] : [])];
  return h("figure.chart", {}, h("figcaption", {}, h("span", {}, title), readout),
    h("div.plot", {},
      h("div.levels", { "aria-hidden": "true" }, levels.map((level) => h("span", { style: { top: percentOf(y(level) / height) } }, show(level)))),
      drawing,
      h("div.stepnumbers", { "aria-hidden": "true" }, numbers.map((step, index) =>
        h(index === 0 ? "span.first" : step === last ? "span.last" : "span", { style: { left: percentOf(x(step) / CHART.width) } }, index === 0 ? `step ${step}` : String(step))))));
}
