"use strict";

// Shows the page that the address names, and follows runs under way where a server has news.
(() => {
  const { element } = Dom;
  const QUICK = 1000;
  const SLOW = 4000;
  const FOLLOWED = ["", "run"]; // others stand still under a reader's eyes
  const PAGES = { "": Overview, compare: ComparisonPage, run: RunPage, samples: SamplesPage };
  const place = document.getElementById("page");
  if (place === null) return;
  const sections = document.getElementById("sections");
  const heading = document.querySelector("h1");
  const own = { heading: heading.textContent, title: document.title };
  let turn = 0;
  let last = null;
  let news = "";

  const nameOf = (focused) => focused?.dataset?.key ?? focused?.getAttribute?.("href") ?? focused?.getAttribute?.("aria-label") ?? (focused?.tagName === "SUMMARY" ? focused.textContent : null);
  const isSelecting = () => !window.getSelection().isCollapsed && place.contains(window.getSelection().anchorNode);

  // The element that has the focus keeps it when the page is drawn again.
  function focusAgain(key) {
    if (key === null) return;
    const found = [...place.querySelectorAll("[data-key], a, summary, [tabindex]")].find((each) => nameOf(each) === key);
    if (found === undefined || found === document.activeElement) return;
    found.focus({ preventScroll: true });
    if (found.type === "search") found.setSelectionRange(found.value.length, found.value.length);
  }

  function showNav(page) {
    for (const link of document.querySelectorAll("nav.pages a")) {
      if (link.getAttribute("href") === `#/${page}`) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
  }

  // A page says its title when it is drawn; the first page has the document's own.
  function showTitle(title) {
    heading.textContent = title ?? own.heading;
    document.title = title ? `${title} – ${own.title}` : own.title;
  }

  // What a reader opened and moved stays so when the page is drawn again.
  function replaceContent(drawing, isSame) {
    const opened = new Set([...place.querySelectorAll("details[open] > summary")].map((each) => each.textContent));
    const shifts = new Map([...place.querySelectorAll(".scroll")].map((box) => [box.getAttribute("aria-label"), box.scrollLeft]));
    place.replaceChildren(...drawing.childNodes);
    if (!isSame) return;
    for (const summary of place.querySelectorAll("details > summary")) summary.parentNode.open = opened.has(summary.textContent);
    for (const box of place.querySelectorAll(".scroll")) box.scrollLeft = shifts.get(box.getAttribute("aria-label")) ?? 0;
  }

  // Draws aside what the address names: an answer that comes late, when the reader has gone to another
  // page, changes nothing. The page of samples keeps its list, and asks `isCurrent` before each change.
  async function show() {
    turn += 1;
    const mine = turn;
    const { page, query } = Address.read();
    const key = place.contains(document.activeElement) ? nameOf(document.activeElement) : null;
    showNav(page);
    if (sections !== null) sections.hidden = page !== "";
    const isCurrent = () => mine === turn;
    const drawing = page === last && page === "samples" ? place : element("div", {});
    let title, failure;
    place.setAttribute("aria-busy", "true");
    try {
      title = await (PAGES[page] ?? Overview).draw(drawing, query, isCurrent);
    } catch (error) {
      failure = element("div", { class: "notice error", role: "alert" }, element("p", {}, error.message));
    }
    if (!isCurrent()) return;
    if (failure !== undefined) drawing.replaceChildren(failure);
    place.removeAttribute("aria-busy");
    showTitle(title);
    if (drawing !== place) replaceContent(drawing, page === last);
    if (last !== null && last !== page) window.scrollTo(0, 0);
    last = page;
    document.documentElement.dataset.drawn = window.location.hash;
    focusAgain(key);
  }

  async function follow() {
    let wait = SLOW;
    try {
      const runs = await Source.runs();
      if (runs.some(Progress.isUnderWay)) wait = QUICK;
      const found = JSON.stringify(runs);
      if (!isSelecting()) { // what a reader is about to copy stays
        if (found !== news && news !== "" && !document.hidden && FOLLOWED.includes(last)) await show();
        news = found;
      }
      document.getElementById("offline").hidden = true;
    } catch {
      document.getElementById("offline").hidden = false;
    }
    window.setTimeout(follow, wait);
  }

  // A report has sections below its first page, which links name without `#/`.
  window.addEventListener("hashchange", async () => {
    const { hash } = window.location;
    const section = /^(#\/|$)/.test(hash) ? null : document.getElementById(hash.slice(1));
    if (section === null || sections?.hidden) await show();
    section?.scrollIntoView();
  });
  document.querySelector(".skip").addEventListener("click", (event) => {
    event.preventDefault();
    document.getElementById("content").focus();
  });
  document.addEventListener("keydown", (event) => {
    const field = place.querySelector("input[type=search]");
    if (event.key !== "/" || field === null || event.ctrlKey || event.metaKey || event.target.matches?.("input, select, textarea")) return;
    event.preventDefault();
    field.focus();
  });
  show();
  if (Source.isLive) follow();
})();
