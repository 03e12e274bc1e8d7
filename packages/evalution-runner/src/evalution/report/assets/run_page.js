"use strict";

// One run: all its scores, what failed, and the settings that it recorded.
const RunPage = (() => {
  const { element } = Dom;
  const NEUTRAL = ["name", "batch_size"];

  function notice(text, kind = "warning") {
    return element("div", { class: `notice ${kind}`, role: "note" }, element("p", {}, text));
  }

  function facts(run) {
    const entries = [["Model", run.model], ["Engine", run.engine], ["Started", Dom.moment(run.started)], ["Ended", Dom.moment(run.ended)], ["Samples", Progress.amount(run.progress)], ["Failed", Dom.number(run.progress.failed)]];
    return element("dl", { class: "facts" }, entries.flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, value)]));
  }

  function scoreRow(run, score) {
    const link = element("a", { href: Overview.samplesAddress(run, score), class: "value" }, Dom.score(score.value));
    return element("tr", {},
      element("th", { scope: "row", class: "stick metric" }, `${score.metric} `, Dom.arrow(score.higher_is_better)),
      element("td", { class: "number" }, score.main ? link : Dom.score(score.value)),
      element("td", { class: "number muted" }, score.low === null ? Dom.DASH : `${Dom.score(score.low)} to ${Dom.score(score.high)}`),
      element("td", { class: "number muted" }, `${Dom.number(score.count)}${score.groups ? ` in ${Dom.plural(score.groups, "group")}` : ""}${score.is_partial ? " so far" : ""}`));
  }

  function suiteBody(run, suite, known) {
    const scores = run.scores.filter((score) => score.suite === suite);
    const counts = known ? [`${Dom.plural(known.samples, "row")}`, known.failed ? `${Dom.number(known.failed)} failed` : "", known.truncated ? `${Dom.number(known.truncated)} truncated` : "", known.seconds === null ? "" : Dom.duration(known.seconds)].filter(Boolean).join(" · ") : "";
    const faults = known ? [known.failed && known.first_failure ? `first failure: ${known.first_failure}` : "", ...known.errors].filter(Boolean) : [];
    return element("tbody", {},
      element("tr", { class: "suite" }, element("th", { scope: "rowgroup", class: "stick", colspan: "4" },
        element("a", { href: Address.make("samples", { run: run.id, suite }) }, suite), element("span", { class: "kind" }, ` ${known?.type ?? ""} ${counts}`))),
      scores.map((score) => scoreRow(run, score)),
      faults.map((text) => element("tr", { class: "remark fault" }, element("td", { colspan: "4" }, element("div", {}, text)))));
  }

  function flattened(value, before = "") {
    if (value === null || typeof value !== "object" || Array.isArray(value) || Object.keys(value).length === 0) return [[before, value]];
    return Object.entries(value).flatMap(([name, member]) => flattened(member, before ? `${before}.${name}` : name));
  }

  function settings(title, values) {
    const entries = flattened(values).filter(([name]) => name !== "");
    if (entries.length === 0) return null;
    const rows = entries.map(([name, value]) => element("tr", {}, element("th", { scope: "row", class: "stick" }, name), element("td", {}, Dom.plain(value))));
    return element("details", {}, element("summary", {}, title), Dom.table(title, "conditions", element("tr", { class: "hidden" }, element("th", { scope: "col" }, "Setting"), element("th", { scope: "col" }, "Value")), element("tbody", {}, rows)));
  }

  function conditions(found) {
    const { options, execution, identity, self_check: check, ...engine } = found.engine;
    const suites = found.suites.map((suite) => settings(`Suite ${suite.name}`, Object.fromEntries(Object.entries({ ...suite.options, ...suite.provenance }).filter(([name]) => !NEUTRAL.includes(name)))));
    return element("section", { "aria-label": "Run conditions" }, element("h2", {}, "Run conditions"), element("p", { class: "muted" }, "As the run recorded them; credentials are left out."),
      settings("Model", { ...found.model, limit: found.limit, step: found.step }), settings("Engine options", options ?? {}), settings("Execution", execution ?? {}),
      settings("Model and tokenizer identity", identity ?? {}), settings("Self check", check ?? {}), settings("Engine", engine), settings("Scoring policy", found.scoring_policy),
      settings("Versions", found.versions), settings("Timings", found.timings), suites);
  }

  async function draw(place, query) {
    const run = (await Source.runs()).find((each) => each.id === query.get("run"));
    if (run === undefined) {
      place.replaceChildren(element("p", { class: "none" }, "There is no such run."));
      return;
    }
    const title = run.label || run.id;
    const head = element("p", {}, Dom.badge(run), Source.isLive ? ` ${run.id} ` : " ", Dom.status(run));
    if (run.problem) {
      place.replaceChildren(head, notice(run.problem, "error"));
      return title;
    }
    const found = await Source.run(run.id);
    const suites = [...new Set([...found.suites.map((suite) => suite.name), ...run.scores.map((score) => score.suite)])];
    const titles = [["Suite and metric", "stick"], ["Value", "number"], ["95 % interval", "number"], ["Rows", "number"]];
    place.replaceChildren(...[head, found.error ? notice(found.error, "error") : null, ...found.notices.map((text) => notice(text)), facts(run),
      suites.length ? Dom.table("All scores of the run", "scores single", element("tr", {}, titles.map(([text, kind]) => element("th", { scope: "col", class: kind }, text))),
        suites.map((suite) => suiteBody(run, suite, found.suites.find((each) => each.name === suite)))) : element("p", { class: "muted" }, "No suite has a score yet."),
      conditions(found)].filter((part) => part !== null));
    return title;
  }

  return { draw };
})();
