"use strict";

/** The messages of an episode; tool calls with their results. */
function transcript({ episode }) {
  const { verifier, ...report } = episode.report;
  const row = Object.entries(episode.spec.task.row);
  return h("div.transcript", { style: { "--fill": rewardColor(episode.reward, rewardRange) } },
    row.length > 0 && taskRow(row),
    episode.tools.length > 0 && toolSchemas(episode.tools),
    episode.prompt.map((given) => message(given)),
    episode.turns.map((turn, index) => turnOf(turn, index, index === episode.turns.length - 1 && episode.stop === "model_stopped", episode.reward)),
    episode.failure && failure("failed", episode.failure),
    episode.close_failure && failure("did not close cleanly", episode.close_failure),
    (episode.retried || []).map((attempt) => failure("an earlier attempt failed", attempt)),
    Array.isArray(verifier) && verifier.map(verdict),
    Object.keys(report).length > 0 && h("details.report", {}, h("summary", {}, "report of the environment"), h("pre", {}, JSON.stringify(report, null, 2))));
}

/** What the tests of a task printed, and the rewards they gave. */
function verdict({ step, rewards, log }) {
  const given = Object.entries(rewards).map(([key, value]) => `${key} ${show(value)}`).join(", ");
  return h("details.verifier", { open: true }, h("summary", {}, `tests${step ? ` of ${step}` : ""}: ${given}`), h("pre", {}, printed(log)));
}

/** Text that a program printed, without the codes of its terminal; the lines of a diff are coloured. */
function printed(text) {
  const plain = text.replace(/\x1b\[[0-9;?]*[ -/]*[@-~]/g, "");
  if (!/^--- .*\n\+\+\+ .*\n@@ /.test(plain)) return plain;
  return plain.split("\n").map((line) => h(line.startsWith("+") ? "ins" : line.startsWith("-") ? "del" : "span", {}, line + "\n"));
}

function taskRow(row) {
  return h("details.task", { open: true }, h("summary", {}, "the task's row"),
    facts(row.map(([name, value]) => [name, value?.digest ? picture(value) : textOfValue(value)]), "dl.arguments"));
}

function toolSchemas(tools) {
  return h("details.tools", {}, h("summary", {}, `${plural(tools.length, "tool")}: ${tools.map((tool) => tool.function.name).join(", ")}`),
    tools.map((tool) => h("div.schema", {}, h("code", {}, signature(tool.function)), h("p", {}, tool.function.description || ""))));
}

function signature({ name, parameters }) {
  const properties = Object.entries(parameters?.properties || {});
  return `${name}(${properties.map(([key, value]) => `${key}: ${value.type || "any"}`).join(", ")})`;
}

/** The text of a message's content, which may be a list of parts. */
function textOf(content) {
  if (Array.isArray(content)) return content.map((part) => part.text ?? `[${part.image?.width ? nameOfPicture(part.image) : part.type}]`).join("\n");
  return content === null || content === undefined ? "" : String(content);
}

/** A message's content with its pictures. */
function contentOf(content) {
  if (!Array.isArray(content)) return textOf(content);
  return content.map((part) => (part.image?.digest ? picture(part.image) : h("div", {}, textOf([part]))));
}

function nameOfPicture({ width, height }) {
  return `image ${width}x${height}`;
}

/** A picture that a click enlarges, or a thumbnail that leads to its file. */
function picture(image) {
  const name = nameOfPicture(image);
  const found = pictures[image.digest];
  if (!found) return h("span", {}, `[${name}]`);
  const shown = h("img", { src: found.uri, alt: name, title: name });
  return found.file ? h("a.picture", { href: (run.home ?? "") + found.file, target: "_blank" }, shown)
    : h("button.picture", { "aria-label": `${name}, full size`, onclick: (event) => event.currentTarget.classList.toggle("full") }, shown);
}

/** A message; one that was the final answer is coloured by the reward. */
function message(given, extra, isFinal = false) {
  const thoughts = given.reasoning_content || given.thinking;
  const kind = ["system", "user", "assistant", "tool"].includes(given.role) ? given.role : "other";
  const empty = thoughts || textOf(given.content) ? "" : ".empty";
  return h(`article.message.${kind}${empty}${isFinal ? ".judged" : ""}`, {},
    h("header", {}, h("span.role", {}, given.role + (given.name ? ` · ${given.name}` : "")), extra),
    thoughts && h("details.thoughts", { open: true }, h("summary", {}, "thoughts"), h("div.text", {}, textOf(thoughts))),
    textOf(given.content) && h("div.text", {}, contentOf(given.content)));
}

function turnOf(turn, index, isFinal, reward) {
  const calls = turn.message.tool_calls || [];
  const results = turn.observation.filter(({ role }) => role === "tool");
  const others = turn.observation.filter(({ role }) => role !== "tool" || !calls.length);
  const facts = [plural(turn.num_tokens, "token"), seconds(turn.generation_seconds), turn.reward ? `reward ${signed(turn.reward)}` : null];
  return h("section.turn", { id: `turn-${index}` },
    message(turn.message, h("span.meta", {}, `turn ${index + 1} · ${facts.filter(Boolean).join(" · ")}`), isFinal),
    (turn.message.malformed || []).map((call) => h("div.call.bad", {}, h("header", {}, h("span.badge", {}, "malformed call")), h("pre", {}, call.text || JSON.stringify(call)))),
    calls.map((call, place) => toolCall(call, turn.tool_calls[place], results[place], reward)),
    others.map((other) => message(other)),
    turn.html && rendering(turn.html, index));
}

function toolCall(call, record, result, reward) {
  const failed = record && !["ok", "not_run"].includes(record.outcome);
  return h(failed ? "div.call.bad" : record?.ends_episode ? "div.call.judged" : "div.call", {},
    h("header", {},
      h("code.name", {}, call.function.name),
      record && h("span.badge", {}, record.ends_episode ? `final answer, reward ${show(reward)}` : record.outcome),
      record && h("span.meta", {}, seconds(record.seconds))),
    argumentTable(call.function.arguments),
    record?.error && h("div.error", {}, record.error),
    result && textOf(result.content) !== record?.error && h("div.result", {}, h("span.arrow", { "aria-hidden": "true" }, "→"), h("div.text", {}, typeof result.content === "string" ? printed(result.content) : contentOf(result.content))),
    record?.traceback && h("details", {}, h("summary", {}, "traceback"), h("pre", {}, record.traceback)));
}

function argumentTable(given) {
  let values = given;
  if (typeof given === "string") {
    try { values = JSON.parse(given); } catch { values = given; }
  }
  if (values === null || typeof values !== "object") return h("pre", {}, String(values));
  const rows = Object.entries(values).map(([name, value]) => [name, typeof value === "string" ? value : JSON.stringify(value, null, 1)]);
  return rows.length ? facts(rows, "dl.arguments") : null;
}

function failure(title, { stage, type, message: text, traceback }) {
  return h("article.failure", {}, h("strong", {}, `${title} at ${stage}: ${type}`), h("p", {}, text),
    h("details", {}, h("summary", {}, "traceback"), h("pre", {}, traceback)));
}

/** The environment's own HTML, in a frame that runs no script and reaches nothing. */
function rendering(html, index) {
  return h("iframe.rendering", { sandbox: "", srcdoc: html, title: `the environment after turn ${index + 1}`, loading: "lazy" });
}
