"use strict";

// The state of the page in its address: `#/page?key=value`, so that every state can be linked to.
const Address = (() => {
  function read() {
    const [, page, query] = /^#\/([a-z]*)\??(.*)$/.exec(window.location.hash) ?? [null, "", ""];
    return { page, query: new URLSearchParams(query) };
  }

  // The address of a page; of several values of a name, each is kept, and an empty one is left out.
  function make(page, values = {}) {
    const query = new URLSearchParams();
    for (const [name, value] of Object.entries(values)) {
      for (const each of [value].flat()) {
        if (each !== null && each !== undefined && each !== "") query.append(name, String(each));
      }
    }
    const text = query.toString();
    return `#/${page}${text ? `?${text}` : ""}`;
  }

  // This page's address with some values changed.
  function change(values) {
    const { page, query } = read();
    const all = {};
    for (const name of query.keys()) all[name] = query.getAll(name);
    return make(page, { ...all, ...values });
  }

  return { read, make, change };
})();

// Documents (evalution.view.documents): of a page that is served from the server, else embedded.
const Source = (() => {
  const LETTERS = 26;
  const held = document.getElementById("documents");
  const embedded = held === null ? null : JSON.parse(held.textContent);
  const isLive = embedded === null;

  async function load(path, values = {}) {
    const query = Address.make("", values).replace(/^#\//, "");
    const answer = await fetch(`/api/${path}${query}`, { cache: "no-cache" });
    if (answer.ok) return answer.json();
    const found = await answer.json().catch(() => ({}));
    throw new Error(found.error?.message ?? found.error ?? `the server answered ${answer.status}`);
  }

  // The runs with their letters: the oldest of a folder is A, and so is the first of a report.
  async function runs() {
    const { runs: found } = isLive ? await load("runs") : embedded.runs;
    return found.map((run, place) => {
      const at = isLive ? found.length - 1 - place : place;
      const letter = `${String.fromCharCode(65 + (at % LETTERS))}${at < LETTERS ? "" : Math.floor(at / LETTERS) + 1}`;
      return { ...run, at, letter };
    });
  }

  const run = async (id) => (isLive ? load(`runs/${encodeURIComponent(id)}`) : embedded.details[id]);
  const latest = async (id) => (isLive ? load("latest", { run: id }) : { run: id, suite: null, samples: [] });

  async function compare(baseline, others) {
    if (isLive) return load("compare", { runs: others, baseline });
    const found = embedded.comparisons[baseline];
    return { ...found, differences: found.differences.filter((each) => others.includes(each.run)) };
  }

  const judgedBy = (id, suite) => embedded.details[id]?.suites.find((each) => each.name === suite)?.judged_by ?? null;

  // By what two runs are judged: the first metric that is right or wrong in both, as they are compared.
  function findJudge({ run: id, against, suite }) {
    const found = [[against, id], [id, against]].flatMap(([base, other]) => embedded.comparisons[base]?.differences.filter((each) => each.run === other) ?? []);
    return found.find((each) => each.suite === suite && each.gained !== null) ?? null;
  }

  // A row of a suite in one run, judged by its own metric or another: what its runs share stands once.
  function sampleAt(id, suite, index, judge) {
    const row = embedded.samples[suite]?.find((each) => each.index === index);
    const own = row?.runs[id];
    if (own === undefined || own === null) return null;
    const found = { ...row.shared, ...own, run: id, suite, index, judge: judge?.metric ?? judgedBy(id, suite) };
    if (judge === null) return found;
    const value = found.metrics[judge.metric];
    return { ...found, right: found.error === null && [0, 1].includes(value) ? (value === 1) === judge.higher_is_better : null };
  }

  function said(sample) {
    const messages = (sample.messages ?? []).map((message) => message.content);
    const extracted = Object.values(sample.extracted).filter((value) => typeof value === "string");
    const choices = sample.choices.map((choice) => choice.text);
    return [sample.prompt, ...messages, sample.target, sample.prediction, sample.error, sample.group, ...extracted, ...choices]
      .filter((text) => typeof text === "string").join("\n").toLowerCase();
  }

  const isFlipped = (sample, other) => typeof sample.right === "boolean" && typeof other?.right === "boolean" && sample.judge === other.judge && sample.right !== other.right;

  function fits(sample, other, which) {
    if (which === "flipped") return isFlipped(sample, other);
    return which === "all" || Dom.verdict(sample) === which;
  }

  const mainValue = (sample) => Object.values(sample.metrics)[0] ?? null;

  function chosen(values) {
    const words = Dom.words(values.q);
    const judge = findJudge(values);
    const rows = (embedded.samples[values.suite] ?? []).flatMap((row) => {
      const sample = sampleAt(values.run, values.suite, row.index, judge);
      const other = values.against ? sampleAt(values.against, values.suite, row.index, judge) : null;
      if (sample === null || !fits(sample, other, values.which || "all")) return [];
      const text = words.length > 0 ? said(sample) : "";
      return words.every((word) => text.includes(word)) ? [{ sample, other }] : [];
    });
    if (!values.sort?.endsWith("value")) return values.sort === "-index" ? rows.reverse() : rows;
    const sign = values.sort.startsWith("-") ? -1 : 1;
    const score = embedded.runs.runs.find((run) => run.id === values.run)?.scores.find((each) => each.main && each.suite === values.suite);
    const infinite = (score?.higher_is_better ?? true) === sign > 0 ? -Infinity : Infinity; // the worst of all
    const key = ({ sample }) => {
      const value = Object.values(sample.metrics)[0];
      if (value === undefined) return Infinity;
      return value === null ? infinite : sign * value;
    };
    return rows.sort((one, other) => key(one) - key(other));
  }

  function question(sample) {
    return sample.messages ? sample.messages.at(-1)?.content ?? "" : sample.prompt ?? "";
  }

  function answer(sample) {
    const found = sample.extracted[sample.judge] ?? Object.values(sample.extracted)[0] ?? sample.prediction;
    return found === null || found === undefined ? null : Dom.plain(found);
  }

  const brief = (sample) => ({ ...sample, prompt: question(sample), extracted: answer(sample), value: mainValue(sample) });

  async function samples(values) {
    if (isLive) return load("samples", values);
    const found = chosen(values);
    const offset = Number(values.offset ?? 0);
    const page = found.slice(offset, offset + Number(values.limit));
    const held = (embedded.samples[values.suite] ?? []).filter((row) => values.run in row.runs).length;
    return {
      ...values, every: embedded.counts[values.suite]?.[values.run] ?? held, total: found.length, held,
      has_more: offset + page.length < found.length,
      samples: page.map(({ sample, other }) => ({ ...brief(sample), other: other === null ? null : brief(other) })),
    };
  }

  async function sample(values) {
    if (isLive) return load("sample", values);
    const index = Number(values.index);
    const found = sampleAt(values.run, values.suite, index, findJudge(values));
    if (found === null) throw new Error("this page does not hold that row");
    const order = chosen(values).map((each) => each.sample.index);
    const place = order.indexOf(index);
    return { ...found, previous: place > 0 ? order[place - 1] : null, next: place < 0 ? null : order[place + 1] ?? null };
  }

  // The runs that can be a baseline: of many runs of a report only the first.
  const baselines = (found) => (isLive ? found : found.filter((each) => each.id in embedded.comparisons));

  return { isLive, baselines, runs, run, latest, compare, samples, sample };
})();
