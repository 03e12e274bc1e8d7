"use strict";

// Rows of all suites in one list, what each run made of them, and which of them a filter leaves.
const SampleRows = (() => {
  const RIGHT = "right";
  const WRONG = "wrong";
  const FAILED = "failed";
  const UNJUDGED = "unjudged";
  const ABSENT = "absent";
  const VERDICTS = ["all", RIGHT, WRONG, FAILED, "flipped", "gained", "lost"];

  // Every row once, in the order of suites and rows; `at` is its place in that order.
  function read(data) {
    const rows = [];
    data.suites.forEach((suite, suiteAt) => {
      for (const [index, prompt, target, cells] of suite.rows) {
        rows.push({ at: rows.length, suite, suiteAt, index, prompt, target, cells, haystack: null });
      }
    });
    return rows;
  }

  // The metric a row is judged by: the chosen one, else the first that knows right and wrong.
  function metricOf(suite, name) {
    const chosen = suite.metrics.findIndex((metric) => metric.name === name);
    if (chosen >= 0) return chosen;
    return Math.max(suite.metrics.findIndex((metric) => metric.binary), 0);
  }

  function verdict(row, run, metricName) {
    const cell = row.cells[run];
    if (cell === null) return ABSENT;
    if (cell.e !== undefined) return FAILED;
    const at = metricOf(row.suite, metricName);
    const metric = row.suite.metrics[at];
    const value = cell.m[at];
    if (!metric?.binary || value === null) return UNJUDGED;
    return (value === 1) === metric.higher ? RIGHT : WRONG;
  }

  function value(row, run, metricName) {
    return row.cells[run]?.m[metricOf(row.suite, metricName)] ?? null;
  }

  // `run` is a run's number, or null for any of them; changes are told against the first run.
  function matches(verdicts, wanted, run) {
    const seen = run === null ? verdicts : [verdicts[run]];
    const others = run === null ? verdicts.slice(1) : seen;
    const first = verdicts[0];
    const opposite = { [RIGHT]: WRONG, [WRONG]: RIGHT };
    switch (wanted) {
      case "all":
        return run === null || verdicts[run] !== ABSENT;
      case "flipped":
        if (run === null || run === 0) return verdicts.includes(RIGHT) && verdicts.includes(WRONG);
        return first in opposite && verdicts[run] === opposite[first];
      case "gained":
        return first === WRONG && others.includes(RIGHT);
      case "lost":
        return first === RIGHT && others.includes(WRONG);
      default:
        return seen.includes(wanted);
    }
  }

  function texts(value) {
    if (value === null || value === undefined) return "";
    if (typeof value === "string") return value;
    if (Array.isArray(value)) return value.map(texts).join("\n");
    if (typeof value === "object") return Object.values(value).map(texts).join("\n");
    return String(value);
  }

  // Everything of a row that a search looks through, in small letters; made when first asked for.
  function haystack(row) {
    if (row.haystack === null) {
      const parts = [row.prompt, row.target, `${row.suite.name} ${row.index}`];
      for (const cell of row.cells) if (cell !== null) parts.push(cell.p, cell.x, cell.e, cell.q, cell.g);
      row.haystack = texts(parts).toLowerCase();
    }
    return row.haystack;
  }

  function found(rows, filter) {
    const words = filter.query.toLowerCase().split(/\s+/).filter(Boolean);
    return rows.filter(
      (row) =>
        (filter.suite === null || row.suiteAt === filter.suite) &&
        words.every((word) => haystack(row).includes(word)),
    );
  }

  // The rows that are left, in order, and how many each verdict would leave.
  function select(rows, filter, runs) {
    const amounts = Object.fromEntries(VERDICTS.map((name) => [name, 0]));
    const left = [];
    for (const row of found(rows, filter)) {
      const verdicts = runs.map((_, run) => verdict(row, run, filter.metric));
      for (const name of VERDICTS) if (matches(verdicts, name, filter.run)) amounts[name] += 1;
      if (matches(verdicts, filter.verdict, filter.run)) left.push(row);
    }
    return { rows: ordered(left, filter), amounts };
  }

  function ordered(rows, filter) {
    if (filter.order === "row") return rows;
    const keys = new Map(rows.map((row) => [row, orderKey(row, filter)]));
    return rows.sort((one, other) => keys.get(one) - keys.get(other) || one.at - other.at);
  }

  // Rows without a value stand last in every order.
  function orderKey(row, filter) {
    const values = row.cells.map((_, run) => value(row, run, filter.metric));
    const known = values.filter((each) => each !== null);
    if (known.length === 0) return Infinity;
    if (filter.order === "spread") return known.length < 2 ? Infinity : Math.min(...known) - Math.max(...known);
    const own = filter.run === null ? known[0] : values[filter.run];
    if (own === null) return Infinity;
    return filter.order === "lowest" ? own : -own;
  }

  return { VERDICTS, read, verdict, value, select };
})();
