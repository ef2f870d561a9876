// Line charts over uPlot: from the page's own numbers, then a point with each live snapshot.
"use strict";
(() => {
  const DASH = { solid: undefined, dashed: [6, 4], dotted: [2, 3] };
  const SPAN_S = 600;
  const probe = document.createElement("i");
  probe.hidden = true;
  document.body.append(probe);
  // Tokens are light-dark() pairs: what a canvas draws with is what they compute to.
  const colour = (name) => {
    probe.className = `swatch ${name}`;
    return getComputedStyle(probe).color;
  };
  const ink = () => ({ text: colour("ink"), line: colour("hairline") });
  const short = (value) => {
    if (value === null || value === undefined) return "—";
    if (value >= 1e6) return `${+(value / 1e6).toFixed(1)}M`;
    return value >= 1e4 ? `${+(value / 1e3).toFixed(1)}k` : `${+value.toFixed(value < 10 ? 1 : 0)}`;
  };
  const withUnit = (value, unit) => (unit === "ms" && value >= 1000 ? `${+(value / 1000).toFixed(2)} s`
    : `${short(value)}${unit ? ` ${unit}` : ""}`);

  const promise = (slo, unit) => ({
    hooks: {
      draw: [(u) => {
        const y = u.valToPos(slo, "y", true);
        if (y < u.bbox.top) return;
        const ctx = u.ctx;
        ctx.save();
        ctx.strokeStyle = ctx.fillStyle = colour("slate");
        ctx.lineWidth = devicePixelRatio;
        ctx.setLineDash([6 * devicePixelRatio, 4 * devicePixelRatio]);
        ctx.beginPath();
        ctx.moveTo(u.bbox.left, y);
        ctx.lineTo(u.bbox.left + u.bbox.width, y);
        ctx.stroke();
        ctx.restore();
      }],
    },
  });

  const make = (place) => {
    const { unit, height, slo } = place.dataset;
    const series = JSON.parse(place.dataset.series);
    const { text, line } = ink();
    const font = `11px ${getComputedStyle(document.body).fontFamily}`;
    const axis = { stroke: text, font, grid: { stroke: line, width: 1 }, ticks: { show: false }, gap: 6 };
    return new uPlot({
      width: place.clientWidth, height: Number(height),
      cursor: { drag: { x: false, y: false }, points: { size: 6 } },
      legend: { show: false },
      padding: [8, 8, 0, 0],
      scales: { x: { range: (u, low, high) => [high - SPAN_S, high] }, y: { range: (u, low, high) => [0, Math.max(high, Number(slo) * 1.15 || 0, unit ? 1 : 4) * 1.05] } },
      axes: [
        { ...axis, grid: { show: false }, space: 80, size: 28, values: (u, ticks) => ticks.map((tick) => new Date(tick * 1000).toISOString().slice(11, 16)) },
        { ...axis, size: 52, space: 36, values: (u, ticks) => ticks.map((tick) => withUnit(tick, unit)) },
      ],
      series: [{}, ...series.map(([label, name, dash]) => ({
        label, stroke: colour(name), width: 1.5, dash: DASH[dash], spanGaps: false, points: { show: false },
      }))],
      plugins: slo ? [promise(Number(slo), unit)] : [],
    }, place.columns, place);
  };

  const places = [...document.querySelectorAll("[data-chart]")];
  const draw = () => {
    for (const place of places) {
      place.plot?.destroy();
      place.plot = make(place);
    }
  };
  for (const place of places) place.columns = JSON.parse(place.dataset.columns);
  draw();
  document.addEventListener("theme", draw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  new ResizeObserver(() => {
    for (const place of places) place.plot.setSize({ width: place.clientWidth, height: Number(place.dataset.height) });
  }).observe(document.getElementById("main"));

  document.addEventListener("live", ({ detail: { point } }) => {
    if (!point) return;
    for (const place of places) {
      const values = point[place.dataset.chart];
      const times = place.columns[0];
      if (!values || values[0] <= (times.at(-1) ?? 0)) continue;
      place.columns.forEach((column, at) => column.push(values[at]));
      while (times[0] < values[0] - SPAN_S) for (const column of place.columns) column.shift();
      place.plot.setData(place.columns);
    }
  });
})();
