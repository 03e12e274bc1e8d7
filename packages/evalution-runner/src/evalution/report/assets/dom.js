"use strict";

// Elements, numbers and times as a reader sees them. Data enters the page as text, never as markup.
const Dom = (() => {
  const DASH = "–";
  const COLOURS = 8;
  const SIGNS = { right: "✓", wrong: "✗", failed: "!", unjudged: "·" };
  const NAMES = { right: "right", wrong: "wrong", failed: "failed", unjudged: "not judged" };

  // An element; a handler is an attribute `on…` with a function, and null leaves an attribute out.
  function element(name, attributes = {}, ...children) {
    const made = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) {
      if (value === null || value === undefined || value === false) continue;
      if (typeof value === "function") made.addEventListener(key.slice(2), value);
      else made.setAttribute(key, value === true ? "" : value);
    }
    made.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
    return made;
  }

  function score(value) {
    if (value === null || value === undefined) return DASH;
    if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
    const text = Math.abs(value) < 1000 ? value.toFixed(4) : String(Number(value.toPrecision(6)));
    return text.replace("-", "−");
  }

  function signed(value) {
    if (!value) return score(value);
    if (Math.abs(value) < 0.00005) return `${value > 0 ? "+" : ""}${value.toExponential(0)}`.replace("-", "−");
    return `${value > 0 ? "+" : ""}${score(value)}`;
  }

  function number(value) {
    if (value === null || value === undefined) return DASH;
    return Number.isInteger(value) ? value.toLocaleString("en") : score(value);
  }

  function chance(p) {
    if (p === null || p === undefined) return DASH;
    return p < 0.0001 ? "< 0.0001" : p.toFixed(4);
  }

  function percent(share) {
    if (share === null || share === undefined) return DASH;
    return share > 0 && share < 0.001 ? "< 0.1 %" : `${(100 * share).toFixed(1)} %`;
  }

  function duration(seconds) {
    if (seconds === null || seconds === undefined) return DASH;
    if (seconds < 60) return `${seconds < 10 ? seconds.toFixed(1) : Math.round(seconds)} s`;
    const minutes = Math.floor(seconds / 60);
    if (minutes < 60) return `${minutes} min ${Math.floor(seconds % 60)} s`;
    return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
  }

  function moment(text) {
    const [, day, time] = /^(\d{4}-\d\d-\d\d)T(\d\d:\d\d)/.exec(text ?? "") ?? [];
    if (!day) return text || DASH;
    const zone = /(Z|[+-]\d\d:\d\d)$/.exec(text)?.[0] ?? "";
    return `${day} ${time}${/^(Z|\+00:00)$/.test(zone) ? " UTC" : ` ${zone}`}`;
  }

  function plain(value) {
    if (value === null || value === undefined) return DASH;
    if (typeof value === "string") return value === value.trim() && value !== "" ? value : JSON.stringify(value);
    if (typeof value === "number") return Number.isInteger(value) ? number(value) : String(value);
    if (Array.isArray(value) && value.every((each) => typeof each === "number")) return value.map(plain).join(", ");
    return JSON.stringify(value);
  }

  const plural = (count, noun) => `${number(count)} ${noun}${count === 1 ? "" : "s"}`;
  const arrow = (higher) =>
    element("span", { class: "direction", title: `${higher ? "higher" : "lower"} is better` }, higher ? "↑" : "↓");
  const badge = (run) => element("span", { class: `badge run-${run.at % COLOURS}`, title: run.label }, run.letter);
  const status = (run) => element("span", { class: `status ${run.status}` }, run.status);

  function mark(verdict, value = "") {
    return element("span", { class: `mark ${verdict}`, title: NAMES[verdict] },
      element("span", { "aria-hidden": "true" }, SIGNS[verdict]), element("span", { class: "hidden" }, NAMES[verdict]), value ? ` ${value}` : "");
  }

  function verdict(sample) {
    if (sample.error) return "failed";
    if (sample.right === null || sample.right === undefined) return "unjudged";
    return sample.right ? "right" : "wrong";
  }

  // A table that scrolls sideways in a box of its own, which the keyboard reaches.
  function table(label, kind, head, ...bodies) {
    return element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": label },
      element("table", { class: kind }, element("thead", {}, head), bodies));
  }

  // The words of a search, in small letters; what stands in quotes is one of them.
  function words(query) {
    return [...(query ?? "").toLowerCase().matchAll(/"([^"]+)"?|([^\s"]+)/g)].map((found) => found[1] ?? found[2]);
  }

  // `text` with the words that were searched for marked.
  function marked(text, wanted) {
    if (wanted.length === 0 || text === "") return [text];
    const quoted = wanted.map((word) => word.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"));
    const parts = text.split(new RegExp(`(${quoted.join("|")})`, "giu"));
    return parts.map((part, at) => (at % 2 ? element("mark", {}, part) : part));
  }

  return {
    DASH, element, score, signed, number, chance, percent, duration, moment, plain, plural, arrow, badge, status,
    mark, verdict, table, words, marked,
  };
})();
