"use strict";

// The controls of the sample browser: filters, list, pages, keys.
(() => {
  const source = document.getElementById("samples-data");
  if (source === null) return;
  const data = JSON.parse(source.textContent);
  const rows = SampleRows.read(data);
  const { element } = SampleView;
  const PAGE = 50;
  const PATIENCE = 120;
  const LABELS = {
    all: "All", right: "Right", wrong: "Wrong", failed: "Failed",
    flipped: "Flipped", gained: "Gained", lost: "Lost",
  };
  const ABOUT = {
    flipped: "right in one run and wrong in another",
    gained: `wrong in ${data.runs[0]}, right later`,
    lost: `right in ${data.runs[0]}, wrong later`,
  };
  const ofSeveralRuns = new Set(["flipped", "gained", "lost"]);
  const at = (id) => document.getElementById(id);
  const list = at("list");
  const detail = at("detail");
  const state = {
    query: "", words: [], suite: null, metric: null, run: null, verdict: "all", order: "row",
    page: 0, chosen: null, found: [],
  };

  function fill(select, entries) {
    select.replaceChildren(...entries.map(([value, text]) => element("option", { value }, text)));
  }

  function metricsShown() {
    const suites = state.suite === null ? data.suites : [data.suites[state.suite]];
    return [...new Set(suites.flatMap((suite) => suite.metrics.map((metric) => metric.name)))];
  }

  function fillMetrics() {
    const names = metricsShown();
    if (!names.includes(state.metric)) state.metric = null;
    fill(at("metric"), [["", state.suite === null ? "main of each suite" : "main"], ...names.map((name) => [name, name])]);
    at("metric").value = state.metric ?? "";
  }

  function fillControls() {
    fill(at("suite"), [["", "all"], ...data.suites.map((suite, number) => [String(number), suite.name])]);
    fillMetrics();
    if (at("run")) fill(at("run"), [["", "any"], ...data.runs.map((letter, number) => [String(number), letter])]);
    const orders = [["row", "row"], ["lowest", "lowest value first"], ["highest", "highest value first"]];
    if (data.runs.length > 1) orders.push(["spread", "largest difference first"]);
    fill(at("order"), orders);
    for (const name of SampleRows.VERDICTS) {
      if (data.runs.length === 1 && ofSeveralRuns.has(name)) continue;
      const choice = element("input", { type: "radio", name: "verdict", value: name });
      choice.checked = name === state.verdict;
      const amount = element("span", { class: "amount", "data-amount": name });
      at("verdicts").append(element("label", { title: ABOUT[name] ?? null }, choice, `${LABELS[name]} `, amount));
    }
  }

  function refresh() {
    const { rows: found, amounts } = SampleRows.select(rows, state, data.runs);
    state.found = found;
    state.page = 0;
    for (const place of document.querySelectorAll("[data-amount]")) {
      place.textContent = amounts[place.dataset.amount].toLocaleString("en");
    }
    at("found").textContent =
      `${found.length.toLocaleString("en")} of ${rows.length.toLocaleString("en")} samples`;
    drawPage();
    choose(found[0] ?? null, { reveal: false });
  }

  function pages() {
    return Math.max(1, Math.ceil(state.found.length / PAGE));
  }

  function drawPage() {
    const shown = state.found.slice(state.page * PAGE, (state.page + 1) * PAGE);
    const items = shown.map((row) => SampleView.item(row, state, data.runs));
    list.replaceChildren(...(items.length > 0 ? items : [element("p", { class: "none" }, "No sample fits these filters.")]));
    list.scrollTop = 0;
    at("page-number").textContent = `${state.page + 1} / ${pages()}`;
    at("previous-page").disabled = state.page === 0;
    at("next-page").disabled = state.page >= pages() - 1;
  }

  function choose(row, { reveal = true } = {}) {
    state.chosen = row;
    for (const item of list.querySelectorAll("[aria-selected=true]")) item.setAttribute("aria-selected", "false");
    if (row === null) {
      list.removeAttribute("aria-activedescendant");
      detail.replaceChildren(element("p", { class: "none" }, "Choose a sample."));
      return;
    }
    const item = at(`sample-${row.at}`);
    item?.setAttribute("aria-selected", "true");
    list.setAttribute("aria-activedescendant", `sample-${row.at}`);
    if (reveal) item?.scrollIntoView({ block: "nearest" });
    detail.replaceChildren(head(row), ...SampleView.detail(row, state, data.runs));
    detail.scrollTop = 0;
  }

  function head(row) {
    const button = (text, label, kind, act) => {
      const made = element("button", { type: "button", class: kind, "aria-label": label }, text);
      made.addEventListener("click", act);
      return made;
    };
    return element(
      "div",
      { class: "detail-head" },
      element("h3", {}, `${row.suite.name} · row ${row.index}`),
      element(
        "span",
        { class: "step" },
        button("List", "Back to the list", "back", () => backToList()),
        button("↑", "Previous sample", "", () => step(-1)),
        button("↓", "Next sample", "", () => step(1)),
      ),
    );
  }

  function backToList() {
    list.focus({ preventScroll: true });
    at(`sample-${state.chosen?.at}`)?.scrollIntoView({ block: "center" });
  }

  function step(by) {
    const place = state.found.indexOf(state.chosen) + by;
    goTo(Math.max(0, Math.min(place, state.found.length - 1)));
  }

  function goTo(place) {
    if (state.found.length === 0) return;
    const page = Math.floor(place / PAGE);
    if (page !== state.page) {
      state.page = page;
      drawPage();
    }
    choose(state.found[place]);
  }

  function turn(by) {
    const page = state.page + by;
    if (page < 0 || page >= pages()) return;
    goTo(page * PAGE);
  }

  function open() {
    if (state.chosen === null) return;
    detail.focus({ preventScroll: true });
    if (window.matchMedia("(max-width: 860px)").matches) detail.scrollIntoView({ block: "start" });
  }

  const listKeys = {
    ArrowDown: () => step(1), j: () => step(1), ArrowUp: () => step(-1), k: () => step(-1),
    ArrowRight: () => turn(1), PageDown: () => turn(1), ArrowLeft: () => turn(-1), PageUp: () => turn(-1),
    Home: () => goTo(0), End: () => goTo(state.found.length - 1), Enter: open, " ": open,
  };

  function onKey(event, act) {
    if (event.ctrlKey || event.metaKey || event.altKey || act === undefined) return;
    event.preventDefault();
    act();
  }

  function listen() {
    let waiting = 0;
    at("query").addEventListener("input", (event) => {
      window.clearTimeout(waiting);
      waiting = window.setTimeout(() => {
        state.query = event.target.value;
        state.words = state.query.toLowerCase().split(/\s+/).filter(Boolean);
        refresh();
      }, PATIENCE);
    });
    const numberOf = (text) => (text === "" ? null : Number(text));
    const taking = (id, take) => at(id)?.addEventListener("change", (event) => { take(event.target.value); refresh(); });
    taking("suite", (value) => { state.suite = numberOf(value); fillMetrics(); });
    taking("metric", (value) => { state.metric = value || null; });
    taking("run", (value) => { state.run = numberOf(value); });
    taking("order", (value) => { state.order = value; });
    taking("verdicts", (value) => { state.verdict = value; });
    at("previous-page").addEventListener("click", () => turn(-1));
    at("next-page").addEventListener("click", () => turn(1));
    at("browser").querySelector("form").addEventListener("submit", (event) => event.preventDefault());
    list.addEventListener("click", (event) => {
      const item = event.target.closest(".item");
      if (item === null) return;
      choose(rows[Number(item.id.replace("sample-", ""))]);
      if (window.matchMedia("(max-width: 860px)").matches) open();
    });
    list.addEventListener("keydown", (event) => onKey(event, listKeys[event.key]));
    detail.addEventListener("keydown", (event) => onKey(event, { Escape: backToList, j: () => step(1), k: () => step(-1) }[event.key]));
    at("query").addEventListener("keydown", (event) => onKey(event, { Escape: backToList, ArrowDown: backToList, Enter: backToList }[event.key]));
    document.addEventListener("keydown", (event) => {
      const typing = event.target.matches?.("input, select, textarea");
      if (event.key === "/" && !typing) onKey(event, () => at("query").focus());
    });
  }

  fillControls();
  listen();
  at("browser").hidden = false;
  refresh();
})();
