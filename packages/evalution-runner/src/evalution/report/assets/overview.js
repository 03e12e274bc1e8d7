"use strict";

// The first page: a sentence that says what was found, runs under way, and the matrix of all scores.
const Overview = (() => {
  const { element } = Dom;
  const SAID = 5;
  const CLEAR = 0.05;
  const PATIENCE = 300; // for a comparison of large runs the page doesn't wait
  let lastSaid = null;

  function mainScores(run) {
    return run.scores.filter((score) => score.main);
  }

  function suiteNames(runs) {
    return [...new Set(runs.flatMap((run) => run.scores.map((score) => score.suite)))];
  }

  const scoreOf = (run, suite) => run.scores.find((score) => score.main && score.suite === suite) ?? null;

  // The suites a mean is made of: shares of right answers alone can be averaged.
  function averaged(runs, suites) {
    const found = suites.filter((suite) => {
      const scores = runs.map((run) => scoreOf(run, suite)).filter((score) => score !== null && score.value !== null);
      return scores.length > 0 && scores.every((score) => score.is_share);
    });
    return found.length > 1 ? found : [];
  }

  // A run's mean, of runs that have finished all those suites; null of others.
  function mean(run, suites) {
    const scores = suites.map((suite) => scoreOf(run, suite));
    if (scores.length === 0 || scores.some((score) => score === null || score.value === null || score.is_partial)) return null;
    return scores.reduce((sum, score) => sum + score.value, 0) / scores.length;
  }

  // The wrong answers behind a score; where it is no share of right ones, all, the worst first.
  function samplesAddress(run, score) {
    const choice = score.is_share ? { which: "wrong" } : { sort: score.higher_is_better ? "value" : "-value" };
    return Address.make("samples", { run: run.id, suite: score.suite, ...choice });
  }

  function cell(run, score, best) {
    if (score === null) return element("td", { class: "number muted" }, Dom.DASH);
    const partial = score.is_partial ? element("span", { class: "tag" }, `${Dom.number(score.count)} so far`) : null;
    const name = `${score.suite} ${Dom.score(score.value)} of ${run.label}: ${score.is_share ? "wrong answers" : "samples"}`;
    const shown = element("a", { href: samplesAddress(run, score), class: `value${best ? " best" : ""}`, title: name }, Dom.score(score.value),
      best ? element("span", { class: "hidden" }, " best") : null);
    const interval = score.low === null ? null : element("span", { class: "under" }, `${Dom.score(score.low)} to ${Dom.score(score.high)}`);
    const failed = score.failed ? element("span", { class: "under bad" }, `${Dom.number(score.failed)} failed`) : null;
    return element("td", { class: "number" }, shown, interval, partial, failed);
  }

  function bestOf(runs, suite) {
    const known = runs.filter((run) => { const score = scoreOf(run, suite); return score !== null && score.value !== null && !score.is_partial; });
    const scores = known.map((run) => scoreOf(run, suite));
    if (new Set(scores.map((score) => score.options)).size > 1) return null; // other questions
    const directions = new Set(scores.map((score) => score.higher_is_better));
    if (new Set(scores.map((score) => Dom.score(score.value))).size < 2 || directions.size > 1) return null;
    if (new Set(scores.map((score) => score.count)).size > 1) return null; // other rows: not to be ranked
    const values = scores.map((score) => score.value);
    return Dom.score(directions.has(true) ? Math.max(...values) : Math.min(...values));
  }

  function heading(name, sort, about) {
    const mine = sort.by === name;
    const next = mine && sort.order === "desc" ? "asc" : "desc";
    const act = () => { window.location.hash = Address.change({ sort: name, order: next }); };
    const sign = mine ? (sort.order === "asc" ? " ▲" : " ▼") : "";
    return element("th", { scope: "col", class: "number", "aria-sort": mine ? `${sort.order}ending` : null },
      element("button", { type: "button", class: "sort", onclick: act, "data-key": `sort-${name}` }, name, element("span", { "aria-hidden": "true" }, sign)), about);
  }

  function sorted(runs, suites, sort) {
    if (sort.by === "") return runs;
    const key = (run) => (sort.by === "mean" ? mean(run, suites) : scoreOf(run, sort.by)?.value ?? null);
    const sign = sort.order === "asc" ? 1 : -1;
    return [...runs].sort((one, other) => {
      const [a, b] = [key(one), key(other)];
      if (a === null || b === null) return (a === null) - (b === null);
      return sign * (a - b);
    });
  }

  function matrixRow(run, suites, shares, bests) {
    const average = mean(run, shares);
    return element("tr", {},
      element("th", { scope: "row", class: "stick" }, Dom.badge(run), " ",
        element("a", { href: Address.make("run", { run: run.id }) }, run.label || run.id),
        element("span", { class: "under" }, Source.isLive ? `${run.id} ` : "", Dom.status(run), run.status === "finished" ? "" : ` ${Progress.amount(run.progress)}`)),
      suites.map((suite) => { const score = scoreOf(run, suite); return cell(run, score, score !== null && !score.is_partial && bests.get(suite) === Dom.score(score.value)); }),
      shares.length ? element("td", { class: "number" }, Dom.score(average)) : null);
  }

  function matrix(runs, query) {
    const suites = suiteNames(runs);
    if (suites.length === 0) return element("p", { class: "muted" }, "No suite has a score yet.");
    const shares = averaged(runs, suites);
    const sort = { by: query.get("sort") ?? "", order: query.get("order") === "asc" ? "asc" : "desc" };
    const bests = new Map(suites.map((suite) => [suite, runs.length > 1 ? bestOf(runs, suite) : null]));
    const about = (suite) => {
      const score = runs.map((run) => scoreOf(run, suite)).find((each) => each !== null);
      return score ? element("span", { class: "metric-name" }, `${score.metric} `, Dom.arrow(score.higher_is_better)) : null;
    };
    const head = element("tr", {},
      element("th", { scope: "col", class: "stick" }, "Run"),
      suites.map((suite) => heading(suite, sort, about(suite))),
      shares.length ? heading("mean", sort, element("span", { class: "metric-name", title: shares.join(", ") }, `of ${shares.length} suites`)) : null);
    const rows = sorted(runs, shares, sort).map((run) => matrixRow(run, suites, shares, bests));
    return element("div", {},
      Dom.table("Main scores of all runs", "matrix", head, element("tbody", {}, rows)),
      element("p", { class: "muted note" }, "A suite's main metric with its 95 % interval. A number leads to the answers that were wrong, or to all with the worst first, a run's name to all its scores, a heading sorts."));
  }

  function gap(found) {
    const size = Math.abs(found.difference);
    const isPoints = found.higher_is_better && [found.value, found.baseline_value].every((value) => value >= 0 && value <= 1);
    if (!isPoints) return `by ${Number(size.toPrecision(3))} ${found.metric}`;
    const points = 100 * size;
    return `by ${points < 1 ? points.toPrecision(1) : Math.round(points)} point${Math.round(points) === 1 ? "" : "s"}`;
  }

  const pText = (p) => (p < 0.0001 ? "p < 0.0001" : `p = ${p.toPrecision(2)}`);

  // What a comparison found on main metrics, in a sentence a run.
  function conclusion(found, base, run) {
    const mains = found.differences.filter((each) => each.run === run.id && each.main && each.difference !== null);
    if (mains.length === 0) return null;
    const tested = mains.filter((each) => each.p_value !== null);
    const without = (isTest) => listed(mains.filter((each) => each.p_value === null && (each.test !== null) === isTest).map((each) => each.suite));
    const [few, untested] = [without(true), without(false)];
    const clear = tested.filter((each) => each.p_value < CLEAR && each.winner !== "tie" && !each.contradicted);
    const side = (winner) => clear.filter((each) => each.winner === winner).map((each) => `on ${each.suite} ${gap(each)} (${pText(each.p_value)})`);
    const said = [];
    const [won, lost] = [side("run"), side("baseline")];
    if (won.length) said.push(" beats ", Dom.badge(base), ` ${listed(won)}`);
    if (lost.length) said.push(`${won.length ? " and" : ""} is worse than `, Dom.badge(base), ` ${listed(lost)}`);
    if (tested.length === 0) said.push(" and ", Dom.badge(base));
    else if (said.length === 0) said.push(" and ", Dom.badge(base), ` differ by no more than chance on ${listed(tested.map((each) => each.suite))}`);
    else if (clear.length < tested.length) {
      const rest = tested.filter((each) => !clear.includes(each)).map((each) => each.suite);
      said.push(`; no clear difference on ${listed(rest)}`);
    }
    const parts = [few ? `can't be compared on ${few}, where both answered too few rows` : "", untested ? `can't be compared by rows on ${untested}` : ""].filter(Boolean);
    if (parts.length) said.push(`${tested.length ? ";" : ""} ${parts.join("; ")}`);
    return element("li", {}, Dom.badge(run), said, ".");
  }

  function listed(texts) {
    if (texts.length < 2) return texts.join("");
    if (texts.length > 4) return `${texts.slice(0, 3).join(", ")} and ${texts.length - 3} more`;
    return `${texts.slice(0, -1).join(", ")} and ${texts.at(-1)}`;
  }

  function single(run) {
    const parts = mainScores(run).map((score) => {
      const margin = score.low === null ? "" : ` (${Dom.score(score.low)} to ${Dom.score(score.high)})`;
      return `${score.metric} ${Dom.score(score.value)}${margin} on ${score.suite}`;
    });
    return parts.length ? element("li", {}, `${run.label}: ${listed(parts)}.`) : null;
  }

  // Sentences about at most five runs against the baseline, and about runs that didn't end well.
  async function summary(runs, query) {
    const scored = runs.filter((run) => run.scores.some((score) => !score.is_partial)).slice(0, SAID);
    const ended = runs.filter((run) => ["interrupted", "failed"].includes(run.status) || run.problem);
    const sentences = [];
    if (scored.length === 1) sentences.push(single(scored[0]));
    else if (scored.length > 1) {
      const bases = Source.baselines(scored);
      const base = bases.find((run) => run.id === query.get("baseline")) ?? bases.reduce((one, run) => (run.at < one.at ? run : one));
      const others = scored.filter((run) => run !== base);
      const found = await Source.compare(base.id, others.map((run) => run.id));
      sentences.push(...others.map((run) => conclusion(found, base, run)));
    }
    sentences.push(...ended.slice(0, SAID).map((run) =>
      element("li", { class: "bad" }, Dom.badge(run), run.problem ? ` can't be read: ${run.problem}` : ` was ${run.status === "failed" ? "ended by an error" : "interrupted"}: ${Progress.amount(run.progress)}.`)));
    const shown = sentences.filter((each) => each !== null);
    return shown.length ? element("ul", { class: "summary" }, shown) : null;
  }

  async function draw(place, query) {
    const runs = await Source.runs();
    if (runs.length === 0) {
      place.replaceChildren(element("p", { class: "none" }, "There is no run in these folders yet. A run that begins is shown here."));
      return;
    }
    const spot = element("div", {}, lastSaid);
    const saying = summary(runs, query).catch(() => null).then((said) => { lastSaid = said; spot.replaceChildren(...(said ? [said] : [])); });
    const live = await Progress.cards(runs);
    await Promise.race([saying, new Promise((resolve) => { window.setTimeout(resolve, PATIENCE); })]);
    const compared = runs.filter((run) => run.scores.length > 0);
    const base = compared.reduce((one, run) => (one === null || run.at < one.at ? run : one), null);
    const link = compared.length > 1 ? element("a", { class: "action", href: Address.make("compare", { baseline: base.id }) }, "Compare runs") : null;
    const details = Source.isLive ? [] : await Promise.all(runs.map((run) => Source.run(run.id)));
    place.replaceChildren(...[spot, live, Charts.training(runs, details),
      element("div", { class: "title-line" }, element("h2", {}, "Scores"), link),
      matrix(runs, query), Charts.scores(runs)].filter((part) => part !== null));
  }

  return { draw, samplesAddress, mainScores, pText, CLEAR };
})();
