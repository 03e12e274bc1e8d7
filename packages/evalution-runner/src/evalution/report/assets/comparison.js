"use strict";

// Runs against a baseline that is chosen by a click.
const ComparisonPage = (() => {
  const { element } = Dom;
  const MOST = 8;

  function reading(found) {
    if (found.difference === null || found.winner === null) return "not comparable";
    if (found.winner === "tie") return "same value";
    if (found.test === null) return found.paired ? "no test for this metric" : "no pairs of rows";
    if (found.p_value === null) return "too few rows";
    if (found.contradicted) return "rows favour the other";
    if (found.p_value >= Overview.CLEAR) return "could be chance";
    return found.winner === "run" ? "better" : "worse";
  }

  function toggle(run, pressed, label, change) {
    return element("button", { type: "button", class: "choice", "aria-pressed": String(pressed), "data-key": `${label}-${run.id}`, title: run.label, onclick: () => { window.location.hash = Address.change(change); } },
      Dom.badge(run), ` ${run.label}`);
  }

  function choices(runs, base, others) {
    const bases = Source.baselines(runs).map((run) => toggle(run, run === base, "baseline", { baseline: run.id, runs: [...new Set([...others.map((each) => each.id), base.id])].filter((id) => id !== run.id) }));
    const compared = runs.filter((run) => run !== base).map((run) => {
      const isIn = others.includes(run);
      const ids = (isIn ? others.filter((each) => each !== run) : [...others, run]).map((each) => each.id);
      return toggle(run, isIn, "compared", { baseline: base.id, runs: ids.length ? ids : [base.id] });
    });
    const group = (title, buttons) => element("fieldset", { class: "choices" }, element("legend", {}, title), buttons);
    return [group("Baseline", bases), runs.length > 2 ? group("Compared with it", compared) : null];
  }

  function row(found, run, base, flips) {
    const said = reading(found);
    const clear = ["better", "worse"].includes(said);
    const flipped = () => element("a", { href: Address.make("samples", { run: run.id, suite: found.suite, against: base.id, which: "flipped" }) }, Dom.number(flips));
    return element("tr", {},
      element("td", {}, Dom.badge(run)),
      element("td", { class: "number" }, Dom.signed(found.difference), found.low === null ? null : element("span", { class: "under" }, `${Dom.signed(found.low)} to ${Dom.signed(found.high)}`)),
      element("td", { class: "number" }, Dom.chance(found.p_value)),
      element("td", {}, element("span", { class: `reading ${clear ? said : "muted"}` }, said)),
      element("td", { class: "number muted" }, `${Dom.score(found.baseline_value)} → ${Dom.score(found.value)}`),
      element("td", { class: "number" }, found.gained === null ? Dom.DASH : `${Dom.number(found.gained)} / ${Dom.number(found.lost)}`),
      element("td", { class: "number" }, flips ? flipped() : found.gained === null ? Dom.DASH : Dom.number(flips ?? null)),
      element("td", { class: "number muted" }, Dom.number(found.paired)));
  }

  function suiteBody(suite, found, base, runs, flipped) {
    const by = new Map(runs.map((run) => [run.id, run]));
    const metrics = [...new Set(found.map((each) => each.metric))];
    const rows = metrics.flatMap((metric) => {
      const mine = found.filter((each) => each.metric === metric);
      return mine.map((each, at) => {
        const made = row(each, by.get(each.run), base, each.main ? flipped[each.run]?.[suite] : undefined);
        if (at === 0) made.prepend(element("th", { scope: "rowgroup", rowspan: String(mine.length), class: "stick metric" }, `${metric} `, Dom.arrow(each.higher_is_better)));
        return made;
      });
    });
    return element("tbody", {},
      element("tr", { class: "suite" }, element("th", { scope: "rowgroup", class: "stick", colspan: "9" }, suite)),
      rows);
  }

  function table(found, base, runs) {
    const heads = [["Suite and metric", "stick"], ["Run", ""], ["Difference, 95 % interval", "number"], ["p", "number"], ["Reading", ""],
      [`${base.letter} → run`, "number"], ["Gained / lost", "number"], ["Flipped", "number"], ["Pairs", "number"]];
    const suites = [...new Set(found.differences.map((each) => each.suite))];
    return Dom.table("Table of differences", "differences", element("tr", {}, heads.map(([text, kind]) => element("th", { scope: "col", class: kind || null }, text))),
      suites.map((suite) => suiteBody(suite, found.differences.filter((each) => each.suite === suite), base, runs, found.flipped)));
  }

  // What limits the comparison: other options, rows that were left out.
  function remarks(found, runs) {
    const said = runs.flatMap((run) => (found.remarks?.[run.id] ?? []).map((text) => element("li", {}, Dom.badge(run), ` ${text}`)));
    return said.length ? element("ul", { class: "remarks" }, said) : null;
  }

  function conditions(found, base, runs) {
    const names = [...new Set(runs.flatMap((run) => (found.conditions[run.id] ?? []).map(([name]) => name)))];
    if (names.length === 0) return null;
    const value = (run, name) => (found.conditions[run.id] ?? []).find(([each]) => each === name);
    const rows = names.map((name) => {
      const known = runs.map((run) => value(run, name)).find((each) => each !== undefined);
      return element("tr", {}, element("th", { scope: "row", class: "stick" }, name), element("td", {}, Dom.plain(known[1])),
        runs.map((run) => { const own = value(run, name); return element("td", { class: own ? null : "muted" }, own ? Dom.plain(own[2]) : "the same"); }));
    });
    return element("section", {}, element("h2", {}, "Settings that differ"),
      Dom.table("Settings that differ", "conditions", element("tr", {}, element("th", { scope: "col", class: "stick" }, "Setting"), [base, ...runs].map((run) => element("th", { scope: "col" }, Dom.badge(run)))), element("tbody", {}, rows)));
  }

  async function draw(place, query) {
    const runs = (await Source.runs()).filter((run) => run.scores.length > 0);
    if (runs.length < 2) {
      place.replaceChildren(element("p", { class: "none" }, "A comparison needs two runs with scores."));
      return;
    }
    const bases = Source.baselines(runs);
    const base = bases.find((run) => run.id === query.get("baseline")) ?? bases.reduce((one, run) => (run.at < one.at ? run : one));
    const asked = query.getAll("runs").slice(-MOST); // the last that were pressed
    const others = runs.filter((run) => run !== base && (asked.length === 0 || asked.includes(run.id))).slice(0, MOST);
    const found = await Source.compare(base.id, others.map((run) => run.id));
    const none = found.differences.length === 0 ? element("p", { class: "none" }, "These runs have no suite in common.") : null;
    place.replaceChildren(...[...choices(runs, base, others),
      element("p", { class: "muted" }, "Rows that both runs answered, in pairs. A difference with p below 0.05 is called better or worse. With many rows in this table, one in twenty falls below by chance alone."),
      none ?? table(found, base, others), remarks(found, others), none ? null : Charts.differences(found.differences, base, others), conditions(found, base, others)].filter((part) => part !== null));
    return `Differences to ${base.letter}`;
  }

  return { draw };
})();
