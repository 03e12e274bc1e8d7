"use strict";

// Runs under way: a bar, the rate, the time left, and the wrong answers that came last.
const Progress = (() => {
  const { element } = Dom;
  const SHOWN = 5;

  function amount(progress) {
    const of = progress.total === null || progress.total <= progress.done ? "" : ` of ${Dom.number(progress.total)}`;
    return `${Dom.number(progress.done)}${of} samples`;
  }

  function bar(done, total, label) {
    const made = element("progress", { "aria-label": label, max: total ?? 1 });
    if (total !== null) made.value = done;
    return made;
  }

  const isUnderWay = (run) => ["loading", "running"].includes(run.status);

  function facts(progress) {
    const parts = [amount(progress)];
    if (progress.suites) parts.push(`suite ${Math.min(progress.suites_done + 1, progress.suites)} of ${progress.suites}`);
    if (progress.rate !== null) parts.push(`${progress.rate.toPrecision(3)} samples/s`);
    if (progress.tokens_per_second !== null) parts.push(`${Math.round(progress.tokens_per_second).toLocaleString("en")} tokens/s`);
    if (progress.eta_s !== null) parts.push(`${Dom.duration(progress.eta_s)} left`);
    if (progress.failed) parts.push(`${Dom.number(progress.failed)} failed`);
    return parts.join(" · ");
  }

  function answer(run, suite, sample) {
    const said = sample.error ?? sample.extracted ?? "";
    return element("li", {}, Dom.mark(Dom.verdict(sample)), " ",
      element("a", { href: Address.make("samples", { run: run.id, suite, which: Dom.verdict(sample) === "unjudged" ? null : Dom.verdict(sample), index: sample.index }) }, `row ${sample.index}`),
      element("span", { class: "excerpt" }, sample.prompt.trim().slice(-160)),
      element("span", { class: "pair-line" }, element("b", {}, said), sample.target === null ? "" : " – target ", sample.target === null ? "" : element("b", {}, sample.target)));
  }

  async function card(run) {
    const { progress } = run;
    const found = await Source.latest(run.id).catch(() => ({ samples: [] }));
    const suite = progress.suite === null ? null : element("p", { class: "muted" }, `${progress.suite}: ${Dom.number(progress.suite_done)}${progress.suite_total === null ? "" : ` of ${Dom.number(progress.suite_total)}`}`);
    const answers = found.samples.slice(0, SHOWN).map((sample) => answer(run, found.suite, sample));
    return element("article", { class: "run-card", "data-run": run.id },
      element("header", {}, Dom.badge(run), " ", element("a", { href: Address.make("run", { run: run.id }) }, run.label || run.id), " ", Dom.status(run)),
      bar(progress.done, run.status === "loading" ? null : progress.total, `Progress of ${run.label || run.id}`),
      element("p", { class: "facts-line" }, run.status === "loading" ? "The model is being loaded." : facts(progress)),
      suite,
      answers.length ? element("h3", {}, found.samples.some((sample) => Dom.verdict(sample) === "unjudged") ? "Latest answers" : "Latest wrong answers") : null,
      answers.length ? element("ul", { class: "latest" }, answers) : null);
  }

  async function cards(runs) {
    const running = runs.filter((run) => Source.isLive && isUnderWay(run));
    if (running.length === 0) return null;
    return element("section", { class: "live", "aria-label": "Runs under way" }, await Promise.all(running.map(card)));
  }

  return { amount, cards, isUnderWay };
})();
