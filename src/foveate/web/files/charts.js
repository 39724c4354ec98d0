// Draws what a page says in its figures, with Chart.js; colours are those of the styles, light or dark.
"use strict";

window.foveateCharts = (() => {
  const drawn = new Map();
  const dark = matchMedia("(prefers-color-scheme: dark)");

  const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
  const compact = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });
  const WRITE = {
    dollars: (value) => (Math.abs(value) < 1 ? `$${+value.toPrecision(3)}` : `$${value.toFixed(2)}`),
    tokens: (value) => compact.format(value),
    number: (value) => compact.format(value),
    percent: (value) => `${+(100 * value).toFixed(1)}%`,
    seconds: (value) => (value < 1 ? `${+(1000 * value).toPrecision(3)} ms` : `${value.toFixed(1)} s`),
  };

  const dataset = (series, stacked) => {
    const colour = style(series.colour);
    const isBar = series.shape === "bar";
    return {
      type: isBar ? "bar" : "line",
      label: series.name,
      data: series.values,
      borderColor: colour,
      backgroundColor: series.shape === "line" ? "transparent" : colour,
      borderWidth: series.shape === "line" ? 2 : isBar ? 0 : 1,
      borderDash: series.shape === "line" && stacked ? [6, 4] : [],
      fill: series.shape === "area" ? (stacked ? "stack" : "origin") : false,
      stack: series.shape === "line" ? series.name : "all",
      pointRadius: series.values.length === 1 ? 3 : 0,
      pointHitRadius: 12,
      stepped: false,
      tension: 0,
      spanGaps: series.shape === "line",
      order: series.shape === "line" ? 0 : 1,
    };
  };

  // Folds and breaks are lines across the chart where they happened.
  const events = {
    id: "events",
    afterDatasetsDraw(chart, _args, options) {
      const { ctx, chartArea, scales } = chart;
      for (const event of options.events ?? []) {
        const x = scales.x.getPixelForValue(event.label);
        ctx.save();
        ctx.strokeStyle = style(event.kind === "fold" ? "fold" : "break");
        ctx.lineWidth = 1.5;
        ctx.setLineDash(event.kind === "fold" ? [] : [3, 3]);
        ctx.beginPath();
        ctx.moveTo(x, chartArea.top);
        ctx.lineTo(x, chartArea.bottom);
        ctx.stroke();
        ctx.restore();
      }
    },
  };

  const options = (said) => ({
    responsive: true,
    maintainAspectRatio: false,
    animation: false,
    interaction: { mode: "index", intersect: false },
    scales: {
      x: {
        stacked: said.stacked,
        ticks: { color: style("quiet"), maxRotation: 0, autoSkip: true, maxTicksLimit: 12 },
        grid: { display: false },
      },
      y: {
        stacked: said.stacked,
        beginAtZero: true,
        ticks: { color: style("quiet"), callback: (value) => WRITE[said.unit](value) },
        grid: { color: style("line") },
      },
    },
    plugins: {
      legend: { display: said.series.length > 1, position: "bottom", labels: { color: style("text"), boxWidth: 12 } },
      tooltip: {
        callbacks: {
          label: (item) => `${item.dataset.label}: ${item.raw === null ? "–" : WRITE[said.unit](item.raw)}`,
          footer: (items) =>
            (said.events ?? []).filter((event) => event.label === items[0]?.dataIndex).map((event) => event.says),
        },
      },
      events: { events: said.events },
    },
  });

  const draw = (figure) => {
    const text = figure.querySelector("script.drawn").textContent;
    const said = JSON.parse(text);
    const canvas = figure.querySelector("canvas");
    drawn.get(figure.id)?.chart.destroy();
    const chart = new Chart(canvas, {
      data: { labels: said.labels, datasets: said.series.map((series) => dataset(series, said.stacked)) },
      options: options(said),
      plugins: [events],
    });
    drawn.set(figure.id, { chart, text, figure });
    canvas.dataset.drawn = String(said.labels.length);
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

  // A part that is one figure keeps its canvas, so that nothing flickers; whether it was taken care of here.
  const update = (old, fresh) => {
    const before = old.querySelector(":scope > figure.chart");
    const after = fresh.querySelector(":scope > figure.chart");
    if (!before || !after || old.children.length !== 1 || fresh.children.length !== 1) return false;
    const text = after.querySelector("script.drawn").textContent;
    if (before.querySelector("script.drawn").textContent === text) return true;
    before.querySelector("script.drawn").textContent = text;
    before.querySelector("canvas").setAttribute("aria-label", after.querySelector("canvas").getAttribute("aria-label"));
    before.querySelector("table").innerHTML = after.querySelector("table").innerHTML;
    draw(before);
    return true;
  };

  Chart.defaults.font.family = "inherit";
  document.addEventListener("foveate:updated", drawAll);
  dark.addEventListener("change", () => [...drawn.values()].forEach(({ figure }) => draw(figure)));
  drawAll();
  return { update };
})();
