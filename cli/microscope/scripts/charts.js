"use strict";

const CHART = { width: 300, height: 84, left: 4, right: 4, top: 8, bottom: 6 };

/** A curve over steps; `onstep` is called with the step that was clicked. */
function chart(title, steps, values, { onstep, marks = [], selected = null, height = CHART.height } = {}) {
  const known = values.map((value, index) => [steps[index], value]).filter(([, value]) => value !== null);
  if (!known.length) return null;
  const xs = known.map(([step]) => step);
  const ys = known.map(([, value]) => value);
  const [low, high] = [smallest(ys), largest(ys)];
  const [first, last] = [xs[0], xs[xs.length - 1]];
  const x = (step) => CHART.left + ((step - first) / (last - first || 1)) * (CHART.width - CHART.left - CHART.right);
  const y = (value) => height - CHART.bottom - ((value - low) / (high - low || 1)) * (height - CHART.top - CHART.bottom);
  const line = known.map(([step, value]) => `${x(step).toFixed(1)},${y(value).toFixed(1)}`).join(" ");
  const shownMarks = marks.filter((step) => step >= first && step <= last && xs.includes(step));
  const valueAt = new Map(known);
  const readout = h("span.value", {}, show(ys[ys.length - 1]));
  const cursor = svg("line.cursor", { y1: CHART.top - 4, y2: height - 2, visibility: "hidden" });
  const stepAt = (event) => {
    const box = drawing.getBoundingClientRect();
    const wanted = first + ((event.clientX - box.left) / box.width) * (last - first);
    return xs.reduce((best, each) => (Math.abs(each - wanted) < Math.abs(best - wanted) ? each : best));
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
    svg("polygon.area", { points: `${x(first)},${height} ${line} ${x(last)},${height}` }),
    svg("polyline.curve", { points: line }),
    selected === null ? null : svg("line.chosen", { x1: x(selected), x2: x(selected), y1: 0, y2: height }),
    shownMarks.map((step) =>
      svg(step === selected ? "line.mark.now" : "line.mark", { x1: x(step), x2: x(step), y1: height - 5, y2: height })),
    cursor,
  );
  return h("figure.chart", {}, h("figcaption", {}, h("span", {}, title), readout), drawing);
}
