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

  // The element that has the focus keeps it when the page is drawn again.
  function focusAgain(key) {
    if (key === null) return;
    const found = [...place.querySelectorAll("[data-key]")].find((each) => each.dataset.key === key);
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

  async function show() {
    turn += 1;
    const mine = turn;
    const { page, query } = Address.read();
    const key = document.activeElement?.dataset?.key ?? null;
    showNav(page);
    if (sections !== null) sections.hidden = page !== "";
    const drawing = page === last ? place : element("div", {});
    let title;
    place.setAttribute("aria-busy", "true");
    try {
      title = await (PAGES[page] ?? Overview).draw(drawing, query);
    } catch (error) {
      drawing.replaceChildren(element("div", { class: "notice error", role: "alert" }, element("p", {}, error.message)));
    }
    if (mine !== turn) return;
    place.removeAttribute("aria-busy");
    showTitle(title);
    if (drawing !== place) {
      place.replaceChildren(...drawing.childNodes);
      if (last !== null) window.scrollTo(0, 0);
    }
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
      if (found !== news && news !== "" && !document.hidden && FOLLOWED.includes(last)) await show();
      news = found;
      document.getElementById("offline").hidden = true;
    } catch {
      document.getElementById("offline").hidden = false;
    }
    window.setTimeout(follow, wait);
  }

  window.addEventListener("hashchange", () => { if (/^(#\/|$)/.test(window.location.hash)) show(); });
  document.addEventListener("keydown", (event) => {
    const field = place.querySelector("input[type=search]");
    if (event.key !== "/" || field === null || event.ctrlKey || event.metaKey || event.target.matches?.("input, select, textarea")) return;
    event.preventDefault();
    field.focus();
  });
  show();
  if (Source.isLive) follow();
})();
