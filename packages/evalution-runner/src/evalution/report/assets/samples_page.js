"use strict";

// The samples of a suite in one run: filters, search, the list, and the sample that is chosen.
const SamplesPage = (() => {
  const { element } = Dom;
  const PAGE = 50;
  const PATIENCE = 250;
  const KINDS = [["", "All"], ["wrong", "Wrong"], ["right", "Right"], ["failed", "Failed"], ["flipped", "Flipped"]];
  const ORDERS = [["", "row"], ["-index", "last row first"], ["value", "lowest value first"], ["-value", "highest value first"]];
  let drawn = { key: null, parts: null };

  function read(query) {
    const values = Object.fromEntries(["run", "suite", "which", "against", "q", "sort", "offset", "index"].map((name) => [name, query.get(name)]));
    return { ...values, limit: PAGE };
  }

  const go = (values) => { window.location.hash = Address.change({ index: null, offset: null, ...values }); };

  function select(label, entries, value, name) {
    const made = element("select", { "data-key": name, name, onchange: (event) => go({ [name]: event.target.value }) }, entries.map(([each, text]) => element("option", { value: each, selected: each === (value ?? "") }, text)));
    return element("label", {}, `${label} `, made);
  }

  function search(values) {
    let waiting = 0;
    const before = document.activeElement?.dataset?.key === "q" ? document.activeElement.value : values.q; // typed since
    const field = element("input", {
      type: "search", "data-key": "q", placeholder: 'Search what was said, "phrases" in quotes', autocomplete: "off", spellcheck: "false", value: before ?? "",
      oninput: () => { window.clearTimeout(waiting); waiting = window.setTimeout(() => go({ q: field.value }), PATIENCE); },
    });
    return element("label", { class: "search" }, element("span", { class: "hidden" }, "Search in samples"), field, element("kbd", { title: "press / to search" }, "/"));
  }

  function filters(values, runs, suites, isJudged) {
    const named = (run) => [run.id, `${run.letter} ${run.label}`];
    const others = runs.filter((run) => run.id !== values.run);
    const possible = (kind) => kind === (values.which ?? "") || (kind === "flipped" ? isJudged && values.against : isJudged || !["wrong", "right"].includes(kind));
    const kinds = KINDS.filter(([kind]) => possible(kind)).map(([kind, text]) =>
      element("a", { class: "kind-choice", href: Address.change({ which: kind, index: null, offset: null }), "aria-current": (values.which ?? "") === kind ? "true" : null, "data-key": `which-${kind}` }, text));
    return element("form", { class: "filters", role: "search", "aria-label": "Samples", onsubmit: (event) => event.preventDefault() },
      search(values),
      select("Run", runs.map(named), values.run, "run"),
      select("Suite", suites.map((suite) => [suite, suite]), values.suite, "suite"),
      others.length ? select("Beside", [["", "no other run"], ...others.map(named)], values.against, "against") : null,
      select("Order", ORDERS, values.sort, "sort"),
      element("nav", { class: "kinds", "aria-label": "Verdict" }, kinds));
  }

  // The place of the first word that was searched for, else the question: the last paragraph.
  function excerpt(sample, words) {
    const whole = (sample.prompt || sample.target || "").trim();
    const isHit = words.length > 0 && whole.toLowerCase().includes(words[0]);
    const flat = (isHit ? whole : whole.split(/\n\s*\n/).at(-1)).replace(/\s+/g, " ");
    const hit = isHit ? flat.toLowerCase().lastIndexOf(words[0]) : -1;
    const start = hit > 100 ? hit - 40 : 0;
    return `${start ? "…" : ""}${flat.slice(start, start + 170)}${flat.length > start + 170 ? "…" : ""}`;
  }

  function item(sample, values, words) {
    const said = sample.error ?? sample.extracted;
    return element("li", {}, element("a", { class: "item", href: Address.change({ index: sample.index }), "data-index": sample.index, "data-key": `item-${sample.index}` },
      element("span", { class: "marks" }, Dom.mark(Dom.verdict(sample)), sample.other ? Dom.mark(Dom.verdict(sample.other)) : null),
      element("span", {}, element("span", { class: "excerpt" }, Dom.marked(excerpt(sample, words), words)),
        element("span", { class: "place" }, `row ${sample.index}`, said === null || said === undefined ? null : [" · ", element("b", {}, said.slice(0, 80))], sample.target === null || sample.error ? null : ` · target ${sample.target.slice(0, 80)}`))));
  }

  function pager(values, found) {
    const offset = Number(values.offset ?? 0);
    const turn = (to, text, label, possible) => (possible ? element("a", { class: "step", href: Address.change({ offset: to || null, index: null }), "aria-label": label, "data-key": label }, text) : element("span", { class: "step-off", "aria-hidden": "true" }, text));
    const last = offset + found.samples.length;
    return element("span", { class: "pager" }, turn(Math.max(0, offset - PAGE), "‹", "Previous page", offset > 0),
      found.samples.length ? ` ${Dom.number(offset + 1)} to ${Dom.number(last)} ` : " ", turn(last, "›", "Next page", found.has_more));
  }

  function counted(found) {
    const all = Dom.plural(found.held ?? found.every, "sample");
    return found.total === null ? `of ${all}` : `${Dom.number(found.total)} of ${all}`;
  }

  // A report may hold a part of the rows.
  function heldPart(found) {
    if (found.held === undefined || found.held >= found.every) return [];
    return [element("div", { class: "notice warning", role: "note" }, element("p", {},
      `This page holds ${Dom.number(found.held)} of ${Dom.number(found.every)} rows: first those that failed or were flipped between runs, then others at random. The run folder holds all of them.`))];
  }

  // Arrow keys go through the list; the item with the focus is the sample that is shown.
  function onKeys(event) {
    const links = [...event.currentTarget.querySelectorAll("a.item")];
    const at = links.indexOf(document.activeElement);
    const by = { ArrowDown: 1, j: 1, ArrowUp: -1, k: -1 }[event.key];
    if (by === undefined || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    const link = links[Math.max(0, Math.min(links.length - 1, at + by))];
    link?.focus();
    link?.click();
  }

  // Why no sample is listed, and the way back to all.
  function nothing(values, found, isJudged, failed) {
    const held = found.held ?? found.every;
    const none = (text, what = "No answer") => `${held < found.every ? `None of the ${Dom.plural(held, "row")} that this page holds` : what} ${text}`;
    const why = { wrong: none(failed ? `is wrong; ${Dom.plural(failed, "sample")} failed.` : "is wrong."), right: none("is right."), failed: none("failed.", "No sample"), flipped: none("is right in one run and wrong in the other.") };
    const isUnjudged = !isJudged && ["wrong", "right", "flipped"].includes(values.which);
    const text = isUnjudged ? "The samples of this suite are neither right nor wrong." : why[values.q ? "" : values.which] ?? "No sample fits these filters.";
    const back = held ? element("a", { class: "action", href: Address.change({ which: null, q: null, offset: null, index: null }), "data-key": "show-all" }, `Show all ${Dom.plural(held, "sample")}`) : null;
    return element("div", { class: "none" }, element("p", {}, text), back);
  }

  async function list(place, values, runs, suites, { judged_by: judge, failed }, isCurrent) {
    const words = Dom.words(values.q);
    const isJudged = judge !== null;
    const found = await Source.samples({ ...values, index: null });
    if (!isCurrent()) return null;
    const items = found.samples.map((sample) => item(sample, values, words));
    const left = element("div", { class: "list-pane" },
      element("div", { class: "list-head" }, element("span", { id: "found", role: "status" }, counted(found)), pager(values, found)),
      items.length ? element("ol", { class: "list", onkeydown: onKeys }, items) : nothing(values, found, isJudged, failed),
      element("p", { class: "keys muted" }, element("kbd", {}, "/"), " search ", element("kbd", {}, "↑"), element("kbd", {}, "↓"), " sample"));
    const detail = element("article", { id: "detail", "aria-label": "Sample", "aria-live": "off", tabindex: "0" }, element("p", { class: "none" }, items.length ? "Choose a sample." : ""));
    detail.hidden = items.length === 0;
    place.replaceChildren(filters(values, runs, suites, isJudged), ...heldPart(found), element("div", { class: "panes" }, left, detail));
    return { left, detail, first: found.samples[0]?.index };
  }

  function pointAt(parts, index) {
    for (const link of parts.left.querySelectorAll("a.item")) {
      const isChosen = link.dataset.index === String(index);
      if (isChosen) link.setAttribute("aria-current", "true");
      else link.removeAttribute("aria-current");
      link.setAttribute("href", Address.change({ index: link.dataset.index }));
      if (isChosen) link.scrollIntoView({ block: "nearest" });
    }
  }

  async function draw(place, query, isCurrent) {
    const runs = await Source.runs();
    const run = runs.find((each) => each.id === query.get("run")) ?? runs.find((each) => each.scores.length > 0) ?? runs[0];
    if (run === undefined) {
      place.replaceChildren(element("p", { class: "none" }, "There is no run."));
      return "Samples";
    }
    const details = run.problem ? null : await Source.run(run.id);
    if (!isCurrent()) return null;
    const suites = details?.suites.map((suite) => suite.name) ?? [];
    const values = read(query);
    values.run = run.id;
    if (!suites.includes(values.suite)) values.suite = suites[0];
    if (values.suite === undefined) {
      place.replaceChildren(element("p", { class: "none" }, `${run.label || run.id} has no samples yet.`));
      return "Samples";
    }
    const suite = details.suites.find((each) => each.name === values.suite);
    const { index, ...rest } = values;
    const key = JSON.stringify([rest, Source.isLive && Progress.isUnderWay(run) ? run.progress.done : 0]);
    if (drawn.key !== key || !place.contains(drawn.parts.left)) {
      const parts = await list(place, values, runs, suites, suite, isCurrent);
      if (parts === null) return null;
      drawn = { key, parts };
    }
    const wide = window.matchMedia("(min-width: 861px)").matches;
    const chosen = index ?? (wide ? drawn.parts.first : null);
    pointAt(drawn.parts, chosen);
    if (chosen !== null && chosen !== undefined) {
      await SampleDetail.draw(drawn.parts.detail, { ...values, index: chosen }, runs, isCurrent);
      if (isCurrent() && !wide && index !== null) drawn.parts.detail.scrollIntoView({ block: "start" });
    }
    return `Samples of ${values.suite}, run ${run.letter}`;
  }

  return { draw };
})();
