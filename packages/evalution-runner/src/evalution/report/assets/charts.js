"use strict";

// Figures of scores, differences and training, made of documents in the form that Figures draws.
const Charts = (() => {
  const { element } = Dom;
  const LINES = 40;
  const RUNS = 12;
  const CURVE_HEIGHT = 300;
  const axis = (own = {}) => ({ title: "", ticks: null, domain: null, is_log: false, is_share: false, from_zero: false, ...own });
  const isFinite = (value) => value !== null && Number.isFinite(value);
  const within = (value, bounds) => (value === null || bounds === null ? value : Math.min(Math.max(value, bounds[0]), bounds[1]));

  // Shares from 0 to 1 have one figure, which is the first, other metrics one each: `[name, scores]`.
  function grouped(scores) {
    const kinds = new Map();
    for (const score of scores) {
      const name = `${score.metric}`;
      const isShare = score.higher_is_better && score.all.every((value) => value >= 0 && value <= 1);
      kinds.set(name, (kinds.get(name) ?? true) && isShare);
    }
    const groups = new Map();
    for (const score of scores) {
      const group = kinds.get(score.metric) ? "" : score.metric;
      groups.set(group, [...(groups.get(group) ?? []), score]);
    }
    return [...groups].sort(([one], [other]) => (one !== "") - (other !== ""));
  }

  function place(figure) {
    const plot = element("div", { class: "plot", role: "img", "aria-label": figure.summary });
    Figures.keep(plot, figure);
    return element("figure", {}, element("figcaption", {}, element("strong", {}, figure.title), figure.note ? element("span", { class: "muted" }, ` ${figure.note}`) : null), plot);
  }

  function section(title, note, figures) {
    if (figures.length === 0) return null;
    return element("section", { class: "charts" }, title ? element("h2", {}, title) : null,
      element("p", { class: "muted note" }, note), element("div", { class: "figures" }, figures.map(place)));
  }

  // Lines from top to bottom, in each the runs' points below each other.
  function dots(title, scores, runs, metric, { bounds, zero }) {
    let lines = [...new Set(scores.map((score) => `${score.suite}\n${score.metric}`))];
    let note = "";
    if (lines.length > LINES) {
      const all = lines.length;
      lines = [...new Map(lines.toReversed().map((line) => [line.split("\n")[0], line])).values()].reverse();
      note = `The first metric of each suite is shown, ${lines.length} of ${all} scores.`;
    }
    const step = Math.min(0.24, 0.72 / runs.length);
    const whole = runs.map((run, order) => ({
      name: `${run.letter} · ${run.label}`, run: run.at, kind: "dots",
      marks: scores.filter((score) => score.run === run.id && lines.includes(`${score.suite}\n${score.metric}`)).map((score) => ({
        x: score.value, y: lines.indexOf(`${score.suite}\n${score.metric}`) + (order - (runs.length - 1) / 2) * step,
        low: within(score.low, bounds), high: within(score.high, bounds), about: score.about,
      })),
    }));
    const held = whole.filter((series) => series.marks.length > 0);
    return {
      title, note, series: held.length > 1 ? held : whole, intervals: "x", rule: null, zero_line: zero, path: [],
      summary: `Dot plot of ${lines.length} scores for ${Dom.plural(runs.length, "run")}; the table has the same.`,
      height: 48 + lines.length * Math.max(30, 15 * runs.length + 12),
      x: axis({ domain: zero ? null : bounds }),
      y: axis({ ticks: lines.map((line, at) => [at, metric ? line.split("\n")[0] : line.replace("\n", " · ")]), domain: [lines.length - 0.5, -0.5] }),
    };
  }

  function scores(runs) {
    const scored = runs.filter((run) => run.scores.length > 0);
    const shown = scored.slice(0, RUNS);
    const found = shown.flatMap((run) => run.scores.filter((score) => isFinite(score.value)).map((score) => ({
      ...score, run: run.id, all: [score.value],
      about: `${score.suite} · ${score.metric}: ${score.value.toPrecision(6)}${score.low === null ? "" : ` [${score.low.toPrecision(4)}, ${score.high.toPrecision(4)}]`}, n = ${score.count}`,
    })));
    const figures = grouped(found).map(([metric, group]) =>
      dots(`${metric || "Scores from 0 to 1"} ${group[0].higher_is_better ? "↑" : "↓"}`, group, shown, metric, { bounds: metric ? null : [0, 1], zero: false }));
    const part = shown.length < scored.length ? ` The first ${RUNS} of ${scored.length} runs are plotted.` : "";
    return section("", `Dots are scores of all metrics, lines their 95 % intervals.${part}`, figures);
  }

  function differences(found, base, runs) {
    const known = found.filter((each) => isFinite(each.difference)).map((each) => ({
      ...each, value: each.difference, all: [each.value, each.baseline_value],
      about: `${each.suite} · ${each.metric}: ${Dom.signed(each.difference)}, p ${Dom.chance(each.p_value)}`,
    }));
    const figures = grouped(known).filter(([, group]) => group.some((each) => each.value !== 0)).map(([metric, group]) =>
      dots(`${metric || "Scores from 0 to 1"}: difference to ${base.letter} ${group[0].higher_is_better ? "→ better" : "← better"}`, group, runs, metric, { bounds: metric ? null : [-1, 1], zero: true }));
    return section("", "Dots are differences, lines their 95 % intervals over the rows that both runs answered.", figures);
  }

  // Scores over steps of training, of runs that name theirs; nothing where there are no two steps.
  function training(runs, details) {
    const steps = new Map(details.filter((each) => each?.step !== null && each?.step !== undefined).map((each) => [each.run.id, each.step]));
    const found = runs.filter((run) => steps.has(run.id)).flatMap((run) => run.scores.filter((score) => isFinite(score.value))
      .map((score) => ({ ...score, step: steps.get(run.id), all: [score.value] })));
    const figures = grouped(found).map(([metric, group]) => {
      const curves = Map.groupBy(group, (score) => `${score.suite} · ${score.metric}`);
      const long = [...curves].filter(([, points]) => new Set(points.map((point) => point.step)).size > 1);
      const bounds = metric ? null : [0, 1];
      return {
        title: `${metric || "Scores from 0 to 1"} ${group[0].higher_is_better ? "↑" : "↓"}`, note: "", height: CURVE_HEIGHT,
        summary: `Scores over steps of training: ${long.map(([name]) => name).join("; ")}.`,
        intervals: "y", rule: null, zero_line: false, path: [], x: axis({ title: "step" }), y: axis({ domain: bounds }),
        series: long.map(([name, points], at) => ({
          name, run: at, kind: "line",
          marks: points.sort((one, other) => one.step - other.step).map((point) => ({
            x: point.step, y: point.value, low: within(point.low, bounds), high: within(point.high, bounds),
            about: `${name} at step ${point.step}: ${Dom.score(point.value)}, n = ${point.count}`,
          })),
        })),
      };
    }).filter((figure) => figure.series.length > 0);
    return section("Scores over training", "Each point is a run at a step of training; lines up and down are 95 % intervals.", figures);
  }

  return { scores, differences, training };
})();
