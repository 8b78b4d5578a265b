"use strict";

/** Make an element: `h("button.primary", {onclick: f, title: "Go"}, "text", node)`.
 *  Children are text or nodes and never HTML, so nothing that a transcript holds is interpreted. */
function h(tag, attributes, ...children) {
  return make("http://www.w3.org/1999/xhtml", tag, attributes, children);
}

/** The same for SVG. */
function svg(tag, attributes, ...children) {
  return make("http://www.w3.org/2000/svg", tag, attributes, children);
}

function make(namespace, tag, attributes, children) {
  const [name, ...classes] = tag.split(".");
  const element = document.createElementNS(namespace, name);
  if (classes.length) element.setAttribute("class", classes.join(" "));
  for (const [key, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (key === "style") for (const [name, text] of Object.entries(value)) element.style.setProperty(name, text);
    else element.setAttribute(key, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** A table that scrolls where it is too wide; `tag` may have classes. */
function table(tag, caption, names, rows) {
  return h("div.scroll", {}, h(tag, {}, caption && h("caption", {}, caption),
    h("thead", {}, h("tr", {}, names.map((name) => h("th", { scope: "col" }, name)))), h("tbody", {}, rows)));
}

/** Names and their values. */
function facts(rows, tag = "dl.facts") {
  return h(tag, {}, rows.filter(Boolean).map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));
}

const MINUS = "−";

/** A number for people: three digits, a true minus sign. */
function show(value, digits = 3) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (typeof value === "string") return value; // infinity and NaN
  const size = Math.abs(value);
  const text = size >= 1000 ? Math.round(size).toLocaleString("en") : String(Number(size.toPrecision(digits)));
  return (value < 0 ? MINUS : "") + text;
}

function signed(value) {
  return value > 0 ? "+" + show(value) : show(value);
}

function percent(value) {
  return show(100 * value) + " %";
}

function seconds(value) {
  return value < 1 ? show(1000 * value, 2) + " ms" : value < 120 ? show(value) + " s" : show(value / 60) + " min";
}

function plural(count, name) {
  return `${show(count)} ${name}${count === 1 ? "" : "s"}`;
}

function sum(values) {
  return values.reduce((total, value) => total + value, 0);
}

/** Math.max(...values) overflows the stack with some 100,000 values. */
function largest(values) {
  return values.reduce((most, value) => Math.max(most, value), -Infinity);
}

function smallest(values) {
  return values.reduce((least, value) => Math.min(least, value), Infinity);
}

function mean(values) {
  return values.length ? sum(values) / values.length : null;
}

/** Show the page by day or by night; as the system says until it is called. */
function switchTheme() {
  const { dataset } = document.documentElement;
  const isDark = dataset.theme ? dataset.theme === "dark" : window.matchMedia("(prefers-color-scheme: dark)").matches;
  dataset.theme = isDark ? "light" : "dark";
}

function themeButton() {
  return h("button.icon", { onclick: switchTheme, "aria-label": "light or dark", title: "light or dark (d)" }, "◐");
}

/** A share with its 95 % interval on a line from 0 to 1; a plain number without one. */
function interval({ name, value, low, high }) {
  const at = (share) => `${(100 * share).toFixed(1)}%`;
  if (low === null || !name.startsWith("pass@")) {
    return h("span.figure", {}, h("span.name", {}, name), h("strong", {}, show(value)), low !== null && h("span.meta", {}, `${show(low)} to ${show(high)}`));
  }
  return h("span.figure", {}, h("span.name", {}, name), h("strong", {}, percent(value)),
    h("span.interval", { "aria-hidden": "true" }, h("span", { style: { left: at(low), width: at(high - low) } }), h("i", { style: { left: at(value) } })),
    h("span.meta", {}, `${percent(low)} to ${percent(high)}`));
}

/** Ask `again` every two seconds for what is new; the element `live` shows whether it answers. */
function keepAsking(again) {
  const ask = async () => {
    const live = document.getElementById("live");
    try {
      await again();
      live?.classList.remove("lost");
    } catch {
      live?.classList.add("lost");
    }
    setTimeout(ask, 2000);
  };
  setTimeout(ask, 2000);
}

/** The colour of a reward within the rewards of the run: low is warm, high is green. Equal rewards are green above 0. */
function rewardColor(value, [low, high]) {
  if (typeof value !== "number") return "var(--line)";
  const share = high > low ? (value - low) / (high - low) : Number(value > 0);
  return `color-mix(in oklab, var(--good) ${Math.round(100 * share)}%, var(--bad))`;
}
