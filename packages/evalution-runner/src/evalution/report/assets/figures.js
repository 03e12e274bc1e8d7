"use strict";

// Draws the figures with Observable Plot, as wide as their place; colours are the page's variables.
const Figures = (() => {
  const SYMBOLS = ["circle", "square", "diamond", "triangle", "cross", "star", "wye"];
  const FORMS = {
    circle: d3.symbolCircle, square: d3.symbolSquare, diamond: d3.symbolDiamond, triangle: d3.symbolTriangle,
    cross: d3.symbolCross, star: d3.symbolStar, wye: d3.symbolWye,
  };
  const DASHES = [null, "6 3", "2 3"];
  const COLOURS = 8;
  const DIGITS = { "-": "⁻", 0: "⁰", 1: "¹", 2: "²", 3: "³", 4: "⁴", 5: "⁵", 6: "⁶", 7: "⁷", 8: "⁸", 9: "⁹" };
  const PRINTED_WIDTH = 640; // of a sheet of A4 within its margins

  const colour = (run) => `var(--run-${run % COLOURS})`;
  const symbol = (run) => SYMBOLS[run % SYMBOLS.length];
  const dash = (run) => DASHES[Math.floor(run / COLOURS) % DASHES.length];

  // 1e-6 as ten with a small exponent, in the texts of ticks.
  function raised(text) {
    return text.replace(/^1e(-?\d+)$/, (_, exponent) => `10${[...exponent].map((digit) => DIGITS[digit]).join("")}`);
  }

  function numbered(axis) {
    if (axis.is_share) return (value) => `${+(100 * value).toPrecision(3)} %`;
    if (!axis.is_log) return (value) => (value !== 0 && Math.abs(value) < 1e-3 ? value.toExponential() : d3.format(",.4~g")(value)).replace("-", "−");
    return (value) => {
      const exponent = Math.log10(value);
      if (value >= 1e-3 && value < 1e4) return d3.format("~g")(value);
      return Number.isInteger(Math.round(exponent * 1e6) / 1e6) ? raised(`1e${Math.round(exponent)}`) : "";
    };
  }

  const pen = document.createElement("canvas").getContext("2d");
  function measured(text) {
    pen.font = `12.5px ${getComputedStyle(document.body).fontFamily}`;
    return pen.measureText(text).width;
  }

  // `text` with its middle left out, so that it takes no more than `width` pixels.
  function shortened(text, width) {
    const letters = [...text];
    for (let kept = letters.length; kept > 4; kept -= 1) {
      const head = Math.ceil(kept / 2);
      const shown = kept === letters.length ? text : `${letters.slice(0, head).join("")}…${letters.slice(head - kept).join("")}`;
      if (measured(shown) <= width) return shown;
    }
    return letters.slice(0, 4).join("");
  }

  function extent(figure, name) {
    const values = figure.series.flatMap((series) =>
      series.marks.flatMap((mark) => [mark[name], ...(figure.intervals === name ? [mark.low, mark.high] : [])]),
    );
    if (figure.rule !== null && name === "y") values.push(figure.rule);
    if (name === "x" && figure.zero_line) values.push(0);
    return values.filter((value) => value !== null && Number.isFinite(value) && !(figure[name].is_log && value <= 0));
  }

  function domain(figure, name) {
    const axis = figure[name];
    if (axis.domain !== null && axis.domain[0] > axis.domain[1]) return axis.domain;
    const values = [...extent(figure, name), ...(axis.domain ?? []), ...(axis.from_zero ? [0] : [])];
    if (values.length === 0) return axis.is_log ? [0.1, 1] : [0, 1];
    let [least, most] = [Math.min(...values), Math.max(...values)];
    if (figure.series.some((series) => series.kind === "bars") && name === "x") return [least - 0.6, Math.max(most, ...(axis.ticks ?? []).map(([at]) => at)) + 0.6];
    if (least === most) [least, most] = axis.is_log ? [least / 3, most * 3] : [least - 0.5, most + 0.5];
    const exact = axis.domain !== null && least >= axis.domain[0] && most <= axis.domain[1];
    if (axis.is_log) return exact ? [least, most] : [least / 1.25, most * 1.25];
    const room = exact ? 0 : (most - least) * 0.04;
    return [axis.from_zero || exact ? least : least - room, most + room];
  }

  function drawn(figure, series, bottom) {
    const { run, marks, kind } = series;
    const own = { stroke: colour(run), ariaHidden: "true" };
    const [along, across] = figure.intervals === "x" ? ["x", "y"] : ["y", "x"];
    const bars = marks.filter((mark) => mark.low !== null);
    const ends = { [across]: across, [`${along}1`]: "low", [`${along}2`]: "high" };
    const interval = bars.length ? [(figure.intervals === "x" ? Plot.ruleY : Plot.ruleX)(bars, { ...ends, ...own, strokeWidth: 1.5 })] : [];
    const path = { x: "x", y: "y", ...own, strokeWidth: 2, strokeDasharray: dash(run) ?? undefined };
    if (kind === "bars") {
      const count = figure.series.length;
      const place = figure.series.indexOf(series);
      const left = (mark) => mark.x - 0.4 + (0.8 * place) / count;
      return [Plot.rect(marks, { x1: left, x2: (mark) => left(mark) + 0.8 / count, y1: bottom, y2: "y", fill: colour(run), title: "about" })];
    }
    if (kind === "steps") return [Plot.line(marks, { ...path, curve: "step-after" })];
    const many = marks.length > 200;
    const dots = Plot.dot(marks, { x: "x", y: "y", r: many ? 2.2 : 4.5, symbol: symbol(run), fill: colour(run), fillOpacity: many ? 0.55 : 1, title: "about" });
    return kind === "line" ? [...interval, Plot.line(marks, path), dots] : [...interval, dots];
  }

  function axes(figure, width) {
    const { x, y } = figure;
    const places = (axis) => axis.ticks?.map(([at]) => at);
    const texts = (axis, most) => {
      const found = new Map((axis.ticks ?? []).map(([at, text]) => [at, shortened(raised(text), most)]));
      return axis.ticks ? (at) => found.get(at) : numbered(axis);
    };
    const most = Math.max(80, width * 0.42);
    const shown = texts(y, most);
    const ends = domain(figure, "y");
    const numbers = places(y) ?? d3.ticks(...ends, 6);
    const margin = y.is_log ? 52 : Math.ceil(Math.max(...numbers.map((at) => measured(shown(at) ?? "")), 12)) + 14;
    const count = Math.max(2, Math.min(10, Math.floor((width - margin) / 90)));
    const grid = { stroke: "var(--line)", strokeOpacity: 1 };
    const size = { fontSize: 12.5, tickSize: 0 };
    const decades = (axis, name) => (axis.is_log ? d3.ticks(...domain(figure, name).map(Math.log10), 5).filter(Number.isInteger).map((at) => 10 ** at) : null);
    const powers = { x: decades(x, "x"), y: decades(y, "y") };
    const ticksX = places(x) ?? (powers.x?.length > 1 ? powers.x : count);
    const ticksY = places(y) ?? (powers.y?.length > 1 ? powers.y : 5);
    return {
      margin,
      marks: [
        Plot.gridX({ ticks: ticksX, ...grid }),
        ...(y.ticks ? [] : [Plot.gridY({ ticks: ticksY, ...grid })]),
        Plot.axisX({ ticks: ticksX, tickFormat: texts(x, 90), label: null, ...size }),
        Plot.axisY({ ticks: ticksY, tickFormat: shown, label: null, ...size }),
      ],
    };
  }

  function chart(figure, width) {
    const bottom = figure.y.is_log ? domain(figure, "y")[0] : 0;
    const { margin, marks } = axes(figure, width);
    const lines = [];
    if (figure.rule !== null) lines.push(Plot.ruleY([figure.rule], { stroke: "var(--muted)", strokeDasharray: "5 4" }));
    if (figure.zero_line) lines.push(Plot.ruleX([0], { stroke: "var(--muted)", strokeWidth: 1.5 }));
    if (figure.path.length > 1) lines.push(Plot.line(figure.path, { stroke: "var(--muted)", strokeDasharray: "5 4" }));
    return Plot.plot({
      width, height: figure.height, marginLeft: margin, marginRight: 22, marginTop: 12, marginBottom: 28,
      style: { background: "transparent", fontFamily: "inherit", color: "var(--text)" },
      x: { type: figure.x.is_log ? "log" : "linear", domain: domain(figure, "x") },
      y: { type: figure.y.is_log ? "log" : "linear", domain: domain(figure, "y") },
      marks: [...marks, ...lines, ...figure.series.flatMap((series) => drawn(figure, series, bottom))],
    });
  }

  function key(series) {
    const sign = d3.create("svg").attr("width", 26).attr("height", 14).attr("viewBox", "-13 -7 26 14").attr("aria-hidden", "true");
    if (series.kind === "line" || series.kind === "steps") {
      sign.append("line").attr("x1", -13).attr("x2", 13).attr("stroke", colour(series.run)).attr("stroke-width", 2).attr("stroke-dasharray", dash(series.run));
    }
    const form = series.kind === "bars" ? d3.symbolSquare : FORMS[symbol(series.run)];
    if (series.kind !== "steps") sign.append("path").attr("d", d3.symbol(form, 60)()).attr("fill", colour(series.run));
    const item = document.createElement("li");
    item.append(sign.node(), series.name);
    return item;
  }

  function titled(name, text) {
    const title = document.createElement("p");
    title.className = `axis ${name}`;
    title.textContent = text;
    return title;
  }

  function draw(place, figure, width = place.clientWidth) {
    if (width < 80) return;
    const parts = [];
    if (figure.series.length > 1) {
      const legend = document.createElement("ul");
      legend.className = "legend";
      legend.append(...figure.series.map(key));
      parts.push(legend);
    }
    if (figure.y.title) parts.push(titled("y", figure.y.title));
    const drawn = chart(figure, width);
    drawn.setAttribute("aria-hidden", "true"); // its place has the summary
    parts.push(drawn);
    if (figure.x.title) parts.push(titled("x", figure.x.title));
    place.replaceChildren(...parts);
  }

  // Draws `figure` in `place`, and again when this gets another width or goes to paper.
  function keep(place, figure) {
    let last = 0;
    new ResizeObserver(() => {
      if (place.clientWidth === last) return;
      last = place.clientWidth;
      draw(place, figure);
    }).observe(place);
    window.addEventListener("beforeprint", () => draw(place, figure, PRINTED_WIDTH));
    window.addEventListener("afterprint", () => draw(place, figure));
  }

  return { keep };
})();

(() => {
  const source = document.getElementById("figures-data");
  if (source === null) return;
  const figures = JSON.parse(source.textContent);
  for (const place of document.querySelectorAll("[data-figure]")) Figures.keep(place, figures[place.dataset.figure]);
})();

// A printed page can't be opened further.
window.addEventListener("beforeprint", () => {
  for (const part of document.querySelectorAll("details")) part.open = true;
});
