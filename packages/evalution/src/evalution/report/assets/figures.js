"use strict";

// Draws the figures with Plotly, in the colours of the page, and again when these change.
(() => {
  const source = document.getElementById("figures-data");
  if (source === null) return;
  const figures = JSON.parse(source.textContent);
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const narrow = window.matchMedia("(max-width: 600px)");
  const options = {
    displaylogo: false,
    // Without a pointer that hovers, Plotly's buttons would always cover a part of the figure.
    displayModeBar: window.matchMedia("(hover: hover)").matches ? "hover" : false,
    responsive: true,
    modeBarButtonsToRemove: ["lasso2d", "select2d", "zoomIn2d", "zoomOut2d", "autoScale2d"],
  };
  const narrowLabel = 15;
  const narrowTicks = 5;
  const runColours = 8;

  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  function shortened(text) {
    const letters = Array.from(text.replace(/&lt;/g, "<").replace(/&gt;/g, ">").replace(/&amp;/g, "&"));
    if (letters.length <= narrowLabel) return text;
    const head = letters.slice(0, 7).join("");
    const short = `${head}…${letters.slice(-7).join("")}`;
    return short.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
  }

  function themedTrace(trace) {
    const run = trace.meta?.run;
    const own = run === undefined ? colour("--accent") : colour(`--run-${run % runColours}`);
    const themed = { ...trace, marker: { ...trace.marker, color: own } };
    if (trace.error_x) themed.error_x = { ...trace.error_x, color: own };
    if (trace.line || trace.mode === "lines") themed.line = { ...trace.line, color: own };
    return themed;
  }

  function themedAxis(axis) {
    return {
      ...axis,
      gridcolor: colour("--line"),
      linecolor: colour("--line-strong"),
      zerolinecolor: colour("--muted"),
      zerolinewidth: 1.5,
      tickfont: { color: colour("--text") },
      title: { ...axis.title, font: { size: 13, color: colour("--muted") } },
    };
  }

  function themedLayout(layout) {
    const axes = Object.keys(layout).filter((name) => /^[xy]axis/.test(name));
    const themed = {
      ...layout,
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: getComputedStyle(document.body).fontFamily, size: 13, color: colour("--text") },
      modebar: { bgcolor: colour("--panel"), color: colour("--muted"), activecolor: colour("--accent") },
      hoverlabel: { bgcolor: colour("--panel"), bordercolor: colour("--line-strong"), font: { color: colour("--text") } },
      ...Object.fromEntries(axes.map((name) => [name, themedAxis(layout[name])])),
    };
    if (narrow.matches && themed.yaxis?.ticktext) {
      themed.yaxis.ticktext = themed.yaxis.ticktext.map(shortened);
      themed.xaxis.nticks = narrowTicks;
    }
    return themed;
  }

  function draw() {
    for (const place of document.querySelectorAll("[data-figure]")) {
      const figure = figures[place.dataset.figure];
      Plotly.react(place, figure.data.map(themedTrace), themedLayout(figure.layout), options);
    }
  }

  draw();
  dark.addEventListener("change", draw);
  narrow.addEventListener("change", draw);
  window.addEventListener("beforeprint", () => {
    for (const place of document.querySelectorAll("[data-figure]")) Plotly.Plots.resize(place);
  });
})();

// A printed page can't be opened further.
window.addEventListener("beforeprint", () => {
  for (const part of document.querySelectorAll("details")) part.open = true;
});
