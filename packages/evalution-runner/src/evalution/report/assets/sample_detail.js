"use strict";

// A sample in full: what was fed, every choice with its probability, tokens by theirs, the answer
// beside its target; of two runs side by side.
const SampleDetail = (() => {
  const { element } = Dom;
  const COLD = 6; // nats of surprise from which on a token has the full colour

  // A text as it is; spaces at its ends are made visible, since a comparison sees them.
  function block(text, words, kind = "") {
    const [, before, middle, after] = /^(\s*)([\s\S]*?)(\s*)$/u.exec(text);
    const blank = (part) => (part ? [element("span", { class: "blank", title: "white space" }, part)] : []);
    const body = text === "" ? [element("span", { class: "muted" }, "(empty)")] : Dom.marked(middle, words);
    return element("pre", { class: kind || null, tabindex: "0" }, blank(before), body, blank(after));
  }

  function titled(title, text, words, kind) {
    if (text === null || text === undefined) return [];
    return [element("h3", {}, title), block(text, words, kind)];
  }

  function fed(sample, words) {
    if (sample.messages === null) return sample.prompt ? titled("What was fed", sample.prompt, words) : [];
    const turns = sample.messages.map((message) => element("div", { class: `turn ${["assistant", "system"].includes(message.role) ? message.role : ""}` },
      element("span", { class: "role" }, message.role), block(message.content, words)));
    return [element("h3", {}, "What was fed"), element("div", { class: "chat" }, turns)];
  }

  // Tokens on a ground that is the redder the less likely the token was.
  function tokens(found) {
    const made = found.map((token) => {
      const about = token.logprob === null ? "no log-probability" : `log-probability ${token.logprob.toFixed(4)}, ${Dom.percent(Math.exp(token.logprob))}`;
      const chip = element("span", { class: "token-chip", title: token.id === null ? about : `${about}, id ${token.id}` }, (token.text ?? "·").replaceAll("\n", "↵\n"));
      const heat = token.logprob === null ? 0 : Math.min(1, -token.logprob / COLD);
      chip.style.setProperty("--heat", `${Math.round(heat * 100)}%`);
      return chip;
    });
    const sum = found.reduce((all, token) => all + (token.logprob ?? 0), 0);
    return element("div", {}, element("div", { class: "tokens", tabindex: "0", role: "group", "aria-label": "Tokens" }, made),
      element("p", { class: "muted scale" }, `${Dom.plural(found.length, "token")}, log-probability ${Dom.score(sum)}; the redder, the less likely`));
  }

  // `metrics` are those by whose rule one of the choices is the answer.
  function choice(found, place, words, metrics) {
    const by = found.chosen_by.length > 1 && found.chosen_by.length === metrics.size ? "all metrics" : found.chosen_by.join(", ");
    const tags = [found.is_target ? element("span", { class: "tag target" }, "target") : null, by ? element("span", { class: "tag", title: found.chosen_by.join(", ") }, `chosen by ${by}`) : null].filter((tag) => tag !== null);
    const fill = element("span", { class: `fill ${found.is_target ? "right" : found.chosen_by.length ? "wrong" : ""}` });
    fill.style.setProperty("inline-size", `${100 * (found.probability ?? 0)}%`);
    return element("li", { class: "option" },
      element("div", { class: "option-line" }, element("span", { class: "option-text" }, Dom.marked(found.text ?? `choice ${place + 1}`, words)), tags),
      element("div", { class: "option-line" }, element("span", { class: "bar-ground", "aria-hidden": "true" }, fill),
        element("span", { class: "numbers" }, Dom.percent(found.probability)), element("span", { class: "muted numbers", title: "log-probability" }, Dom.score(found.logprob))),
      found.tokens === null ? null : tokens(found.tokens));
  }

  function facts(title, entries) {
    if (entries.length === 0) return null;
    return element("div", {}, element("h3", {}, title), element("dl", { class: "facts" }, entries.flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, Dom.plain(value))])));
  }

  function versus(sample, words) {
    const extracted = Object.entries(sample.extracted);
    if (sample.choices.length > 0 || (extracted.length === 0 && sample.target === null)) return null;
    const cells = extracted.map(([name, value]) => element("div", {}, element("h3", {}, extracted.length > 1 ? `Extracted, ${name}` : "Extracted answer"), block(Dom.plain(value) === Dom.DASH ? "" : typeof value === "string" ? value : Dom.plain(value), words)));
    const target = sample.target === null ? [] : [element("div", {}, element("h3", {}, extracted.length || sample.prediction !== null ? "Target" : "Text"), block(sample.target, words))];
    return element("div", { class: "versus" }, cells, target);
  }

  function answer(run, sample, words) {
    const verdict = Dom.verdict(sample);
    const metrics = new Set(sample.choices.flatMap((each) => each.chosen_by));
    const body = [
      ...titled("Error", sample.error, words, "failure"),
      versus(sample, words),
      sample.choices.length ? element("h3", {}, "Choices") : null,
      sample.choices.length ? element("ol", { class: "options" }, sample.choices.map((each, at) => choice(each, at, words, metrics))) : null,
      ...(sample.choices.length ? [] : titled("Prediction", sample.prediction, words)),
      sample.tokens ? element("h3", {}, sample.prediction === null ? "Tokens of the text" : "Tokens of the prediction") : null,
      sample.tokens ? tokens(sample.tokens) : null,
      element("div", { class: "fact-groups" }, sample.error ? null : facts("Metrics", Object.entries(sample.metrics)), facts("Tokens counted", Object.entries(sample.counts))),
    ];
    return element("section", { class: "answer", "aria-label": `Answer of ${run.label}` }, element("header", {}, Dom.badge(run), Dom.mark(verdict, verdict === "unjudged" ? "not judged" : verdict)), body);
  }

  function step(values, index, text, label, key) {
    if (index === null || index === undefined) return element("span", { class: "step-off", "aria-hidden": "true" }, text);
    return element("a", { class: "step", href: Address.change({ index }), "aria-label": label, "data-key": key }, text);
  }

  const asked = (sample) => JSON.stringify([sample.prompt, sample.messages]);

  async function draw(place, values, runs, isCurrent) {
    const words = Dom.words(values.q);
    const of = (id) => runs.find((run) => run.id === id);
    const sample = await Source.sample(values);
    const other = values.against ? await Source.sample({ ...values, run: values.against, against: values.run, which: null, q: null }).catch(() => null) : null;
    if (!isCurrent()) return;
    const both = [[of(values.run), sample], ...(other === null ? [] : [[of(values.against), other]])];
    const choiceTarget = sample.choices.length > 0 && sample.target !== null && !sample.choices.some((each) => each.is_target);
    place.replaceChildren(
      element("div", { class: "detail-head" }, element("h2", { tabindex: "-1" }, [sample.suite, `row ${sample.index}`, ...(sample.group === null ? [] : [`group ${sample.group}`])].join(" · ")),
        element("a", { class: "step back", href: Address.change({ index: null }) }, "List"),
        step(values, sample.previous, "↑", "Previous sample", "previous"), step(values, sample.next, "↓", "Next sample", "next")),
      ...fed(sample, words),
      ...(choiceTarget ? titled("Target", sample.target, words) : []),
      element("div", { class: both.length > 1 ? "side-by-side" : "" }, both.map(([run, each]) => element("div", {},
        each !== sample && asked(each) !== asked(sample) ? fed(each, words) : [], answer(run, each, words)))),
    );
    place.scrollTop = 0;
  }

  return { draw };
})();
