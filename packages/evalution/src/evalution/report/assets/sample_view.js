"use strict";

// Draws a line of the list and a sample in full. Data enters the page as text, never as markup.
const SampleView = (() => {
  const EXCERPT = 170;
  const BEFORE_HIT = 40;
  const SIGNS = { right: "✓", wrong: "✗", failed: "!", unjudged: "·", absent: "–" };
  const NAMES = { right: "right", wrong: "wrong", failed: "failed", unjudged: "not judged", absent: "not run" };

  function element(name, attributes = {}, ...children) {
    const made = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) {
      if (value !== null) made.setAttribute(key, value);
    }
    made.append(...children);
    return made;
  }

  function promptText(prompt) {
    if (prompt === null) return "";
    if (typeof prompt === "string") return prompt;
    return prompt.map((message) => contentText(message.content)).join("\n");
  }

  function contentText(content) {
    return typeof content === "string" ? content : JSON.stringify(content ?? "", null, 1);
  }

  function number(value) {
    if (value === null || value === undefined) return "–";
    if (Number.isInteger(value)) return String(value);
    return Math.abs(value) < 1000 ? value.toFixed(4) : value.toPrecision(6);
  }

  // What a prompt ends with is the question: the last message, or the last paragraph.
  function question(prompt) {
    if (Array.isArray(prompt)) return contentText(prompt.at(-1)?.content);
    return (prompt ?? "").trim().split(/\n\s*\n/).at(-1);
  }

  // The beginning of the question; with a search, the place of its first word.
  function excerpt(row, words) {
    const flat = (text) => text.replace(/\s+/g, " ").trim();
    const whole = flat(promptText(row.prompt) || row.target || "");
    const hit = words.length > 0 ? whole.toLowerCase().lastIndexOf(words[0]) : -1;
    const asked = flat(question(row.prompt)) || whole;
    if (hit < 0) return asked.length > EXCERPT ? `${asked.slice(0, EXCERPT)}…` : asked;
    const start = Math.max(0, Math.min(hit - BEFORE_HIT, whole.length - EXCERPT));
    const end = Math.min(whole.length, start + EXCERPT);
    return `${start > 0 ? "…" : ""}${whole.slice(start, end)}${end < whole.length ? "…" : ""}`;
  }

  // `text` with the words that were searched for marked.
  function marked(text, words) {
    if (words.length === 0 || text === "") return [text];
    const quoted = words.map((word) => word.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"));
    const parts = text.split(new RegExp(`(${quoted.join("|")})`, "giu"));
    return parts.map((part, at) => (at % 2 ? element("mark", {}, part) : part));
  }

  // A text as it is; spaces at its ends are made visible, since a comparison sees them.
  function block(text, words, kind = "") {
    const [, before, middle, after] = /^(\s*)([\s\S]*?)(\s*)$/u.exec(text);
    const blank = (part) => (part ? [element("span", { class: "blank", title: "white space" }, part)] : []);
    const body = text === "" ? [element("span", { class: "muted" }, "(empty)")] : marked(middle, words);
    return element("pre", { class: kind }, ...blank(before), ...body, ...blank(after));
  }

  function mark(verdict, letter, value = "") {
    const about = `${letter ? `${letter}: ` : ""}${NAMES[verdict]}`;
    const shown = [letter, SIGNS[verdict], value].filter(Boolean).join(" ");
    return element("span", { class: `mark ${verdict}`, title: about, role: "img", "aria-label": about }, shown);
  }

  function item(row, state, runs) {
    const marks = runs.map((letter, run) =>
      mark(SampleRows.verdict(row, run, state.metric), runs.length > 1 ? letter : ""),
    );
    return element(
      "div",
      { class: "item", role: "option", id: `sample-${row.at}`, "aria-selected": "false" },
      element("span", { class: "marks" }, ...marks),
      element(
        "span",
        {},
        element("span", { class: "excerpt" }, ...marked(excerpt(row, state.words), state.words)),
        element("span", { class: "place" }, `${row.suite.name} · row ${row.index}`),
      ),
    );
  }

  function prompt(value, words) {
    if (value === null || value === "") return [];
    if (typeof value === "string") return [element("h4", {}, "Prompt"), block(value, words)];
    const turns = value.map((message) =>
      element(
        "div",
        { class: `turn ${message.role === "assistant" ? "assistant" : ""} ${message.role === "system" ? "system" : ""}` },
        element("span", { class: "role" }, String(message.role ?? "")),
        block(contentText(message.content), words),
      ),
    );
    return [element("h4", {}, "Prompt"), element("div", { class: "chat" }, ...turns)];
  }

  function text(title, value, words, kind) {
    if (value === null || value === undefined) return [];
    return [element("h4", {}, title), block(value, words, kind)];
  }

  function facts(title, entries, words) {
    if (entries.length === 0) return [];
    const cells = entries.flatMap(([name, value]) => [
      element("dt", {}, name),
      element("dd", {}, ...marked(value, words)),
    ]);
    return [element("div", {}, element("h4", {}, title), element("dl", { class: "facts" }, ...cells))];
  }

  function plain(value) {
    if (typeof value === "string") return value;
    if (Array.isArray(value)) return value.map((each) => (typeof each === "number" ? number(each) : plain(each))).join(", ");
    return typeof value === "number" ? number(value) : JSON.stringify(value);
  }

  function answer(row, run, state, runs) {
    const cell = row.cells[run];
    const several = runs.length > 1;
    const verdict = SampleRows.verdict(row, run, state.metric);
    const badge = several ? [element("span", { class: `badge run-${run % 8}` }, runs[run])] : [];
    const head = element("header", {}, ...badge, mark(verdict, "", NAMES[verdict]));
    if (cell === null) return element("section", { class: "answer" }, head);
    const metrics = row.suite.metrics.map((metric, at) => [`${metric.name} ${metric.higher ? "↑" : "↓"}`, number(cell.m[at])]);
    const named = (values) => Object.entries(values ?? {}).map(([name, value]) => [name, plain(value)]);
    return element(
      "section",
      { class: "answer" },
      head,
      ...text("Error", cell.e, state.words, "failure"),
      ...(cell.q === undefined ? [] : prompt(cell.q, state.words)),
      ...text("Target", cell.g, state.words),
      ...text("Prediction", cell.p, state.words),
      element(
        "div",
        { class: "numbers" },
        ...facts("Metrics", cell.e === undefined ? metrics : [], []),
        ...facts("Extracted", named(cell.x), state.words),
        ...facts("Tokens", named(cell.t), []),
      ),
    );
  }

  // The parts of a sample, most telling first: question, right answer, and each run's own.
  function detail(row, state, runs) {
    return [
      ...prompt(row.prompt, state.words),
      ...text(row.prompt ? "Target" : "Text", row.target, state.words),
      ...runs.map((_, run) => answer(row, run, state, runs)),
    ];
  }

  return { element, item, detail };
})();
