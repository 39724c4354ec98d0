// Draws the charts of a page with Chart.js, in the colours of the style sheet, light or dark.
"use strict";

window.foveateCharts = (() => {
  const drawn = new Map();
  const dark = matchMedia("(prefers-color-scheme: dark)");

  // Read once: after a chart is drawn, every further read forces a new layout of the page.
  const colours = new Map();
  const style = (name) => {
    if (!colours.has(name)) {
      colours.set(name, getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim());
    }
    return colours.get(name);
  };
  const compact = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });
  const WRITE = {
    dollars: (value) => `${value < 0 ? "-" : ""}$${Math.abs(value).toFixed(value && Math.abs(value) < 1 ? 4 : 2)}`,
    tokens: (value) => compact.format(value),
    number: (value) => compact.format(value),
    percent: (value) => `${+(100 * value).toFixed(1)}%`,
    seconds: (value) => (value < 1 ? `${+(1000 * value).toPrecision(3)} ms` : `${value.toFixed(1)} s`),
  };

  // Lines differ by the shapes of their points too, not only by colour.
  const POINTS = ["circle", "triangle", "rect", "rectRot", "crossRot", "star", "cross"];
  const MOST_POINTS = 40;

  // All labels of an axis have the same decimals.
  const tickLabel = (unit, value, ticks) => {
    if (unit !== "dollars") return WRITE[unit](value);
    const largest = Math.max(...ticks.map((tick) => Math.abs(tick.value)));
    const amount = Math.abs(value);
    const text = largest < 0.1 ? amount.toFixed(4) : largest < 10 ? amount.toFixed(2) : compact.format(amount);
    return `${value < 0 ? "-" : ""}$${text}`;
  };

  const dataset = (series, place, stacked) => {
    const colour = style(series.colour);
    const isBar = series.shape === "bar";
    const isLine = series.shape === "line" || series.shape === "limit";
    const isDashed = series.shape === "limit" || (isLine && stacked);
    const hasPoints = isLine && !isDashed && series.values.length <= MOST_POINTS;
    const alone = series.values.filter((value) => value !== null).length === 1;
    return {
      type: isBar ? "bar" : "line",
      label: series.name,
      data: series.values,
      borderColor: isBar ? style("ground") : colour,
      backgroundColor: isLine && !hasPoints ? "transparent" : colour,
      borderWidth: isLine ? (isDashed ? 1.5 : 2) : 1,
      borderDash: isDashed ? [6, 4] : [],
      // Not "stack": an area would be stacked on every line of the chart, including limits.
      fill: series.shape === "area" ? (stacked && place > 0 ? "-1" : "origin") : false,
      stack: isLine ? series.name : "all",
      pointStyle: isLine && !isDashed ? POINTS[place % POINTS.length] : "line",
      pointRadius: hasPoints ? 4 : alone && !isBar ? 3 : 0,
      pointHoverRadius: isDashed ? 0 : 5,
      pointHitRadius: 12,
      maxBarThickness: 48,
      tension: 0,
      spanGaps: isLine,
      order: isLine ? 0 : 1,
    };
  };

  // Compactions and cache misses are vertical lines, side by side if both happened at one label.
  const KINDS = {
    compaction: { text: "compaction", colour: "compaction", dash: [], shift: 0 },
    miss: { text: "cache miss", colour: "miss", dash: [3, 3], shift: 2 },
  };
  const keys = (spec) =>
    [...new Set((spec.events ?? []).map((event) => event.kind))].map((kind) => ({
      text: KINDS[kind].text,
      fontColor: style("text"),
      fillStyle: "transparent",
      strokeStyle: style(KINDS[kind].colour),
      lineWidth: 2,
      lineDash: KINDS[kind].dash,
    }));
  const legend = Chart.defaults.plugins.legend;
  const events = {
    id: "events",
    afterDatasetsDraw(chart, _args, options) {
      const { ctx, chartArea, scales } = chart;
      for (const event of options.events ?? []) {
        const kind = KINDS[event.kind];
        const x = scales.x.getPixelForValue(event.label) + kind.shift;
        ctx.save();
        ctx.strokeStyle = style(kind.colour);
        ctx.lineWidth = 1.5;
        ctx.setLineDash(kind.dash);
        ctx.beginPath();
        ctx.moveTo(x, chartArea.top);
        ctx.lineTo(x, chartArea.bottom);
        ctx.stroke();
        ctx.restore();
      }
    },
  };

  const options = (spec) => ({
    responsive: true,
    maintainAspectRatio: false,
    animation: false,
    interaction: { mode: "index", intersect: false },
    scales: {
      x: {
        stacked: spec.stacked,
        offset: spec.series.every((series) => series.shape !== "area"),
        ticks: { color: style("quiet"), maxRotation: 0, autoSkip: true, maxTicksLimit: 12 },
        grid: { display: false },
      },
      y: {
        stacked: spec.stacked,
        beginAtZero: true,
        suggestedMax: spec.unit === "percent" ? 1 : undefined,
        ticks: {
          color: style("quiet"),
          maxTicksLimit: 6,
          precision: spec.unit === "number" || spec.unit === "tokens" ? 0 : undefined,
          callback: (value, _index, ticks) => tickLabel(spec.unit, value, ticks),
        },
        border: { display: false },
        grid: { color: style("line") },
      },
    },
    plugins: {
      legend: {
        display: spec.series.length > 1,
        position: "bottom",
        // Events are in the legend, but cannot be hidden.
        onClick: (event, item, of) => item.datasetIndex !== undefined && legend.onClick.call(of, event, item, of),
        labels: {
          color: style("text"),
          boxWidth: 14,
          boxHeight: 8,
          padding: 12,
          usePointStyle: false,
          generateLabels: (chart) => [...legend.labels.generateLabels(chart), ...keys(spec)],
        },
      },
      tooltip: {
        callbacks: {
          label: (item) => `${item.dataset.label}: ${item.raw === null ? "–" : WRITE[spec.unit](item.raw)}`,
          footer: (items) =>
            (spec.events ?? []).filter((event) => event.label === items[0]?.dataIndex).map((event) => event.description),
        },
      },
      events: { events: spec.events },
    },
  });

  const datasets = (spec) => spec.series.map((series, place) => dataset(series, place, spec.stacked));

  const draw = (figure) => {
    const text = figure.querySelector("script.drawn").textContent;
    const spec = JSON.parse(text);
    const canvas = figure.querySelector("canvas");
    drawn.get(figure.id)?.chart.destroy();
    const chart = new Chart(canvas, {
      data: { labels: spec.labels, datasets: datasets(spec) },
      options: options(spec),
      plugins: [events],
    });
    drawn.set(figure.id, { chart, text, figure });
    canvas.dataset.drawn = String(spec.labels.length);
  };

  // The same series with new values: hovered and hidden series stay so.
  const redraw = (figure) => {
    const known = drawn.get(figure.id);
    const text = figure.querySelector("script.drawn").textContent;
    const spec = JSON.parse(text);
    const names = (series) => JSON.stringify(series.map((one) => [one.name ?? one.label]));
    if (!known || known.figure !== figure || names(known.chart.data.datasets) !== names(spec.series)) return draw(figure);
    const fresh = datasets(spec);
    known.chart.data.labels = spec.labels;
    known.chart.data.datasets.forEach((one, place) => Object.assign(one, fresh[place]));
    known.chart.options = options(spec);
    known.chart.update("none");
    drawn.set(figure.id, { ...known, text });
    figure.querySelector("canvas").dataset.drawn = String(spec.labels.length);
  };

  const drawAll = () => {
    for (const [id, { chart, figure }] of drawn) {
      if (figure.isConnected) continue;
      chart.destroy();
      drawn.delete(id);
    }
    for (const figure of document.querySelectorAll("figure.chart")) {
      const known = drawn.get(figure.id);
      const text = figure.querySelector("script.drawn").textContent;
      if (!known || known.figure !== figure || known.text !== text) draw(figure);
    }
  };

  // A part that is one figure keeps its canvas, so that nothing flickers. Returns whether it was updated here.
  const update = (old, fresh) => {
    const before = old.querySelector(":scope > figure.chart");
    const after = fresh.querySelector(":scope > figure.chart");
    if (!before || !after || old.children.length !== 1 || fresh.children.length !== 1) return false;
    const text = after.querySelector("script.drawn").textContent;
    if (before.querySelector("script.drawn").textContent === text) return true;
    before.querySelector("script.drawn").textContent = text;
    before.querySelector("canvas").setAttribute("aria-label", after.querySelector("canvas").getAttribute("aria-label"));
    before.querySelector("figcaption").textContent = after.querySelector("figcaption").textContent;
    before.querySelector("table").replaceWith(document.importNode(after.querySelector("table"), true));
    redraw(before);
    return true;
  };

  Chart.defaults.font.family = getComputedStyle(document.body).fontFamily;
  document.addEventListener("foveate:updated", drawAll);
  dark.addEventListener("change", () => {
    colours.clear();
    [...drawn.values()].forEach(({ figure }) => draw(figure));
  });
  drawAll();
  return { update };
})();
