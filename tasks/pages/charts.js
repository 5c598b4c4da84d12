// The charts, drawn at the width they have: text keeps its size on every screen.

function drawAtWidth(container, draw) {
  let drawn = 0;
  new ResizeObserver(() => {
    const width = Math.floor(container.clientWidth);
    if (width === drawn || width === 0) return;
    drawn = width;
    container.replaceChildren(draw(width));
  }).observe(container);
}

function text(x, y, words, attributes = {}) {
  return svg("text", { x, y, ...attributes }, words);
}

function line(x1, y1, x2, y2, name) {
  return svg("path", { class: name, d: `M${x1} ${y1}L${x2} ${y2}` });
}

function percent(share) {
  return `${(100 * share).toFixed(1)}\u00a0%`;
}

function intervalsChart(data, width) {
  const [left, right, top, rowHeight] = [64, 18, 22, 30];
  const x = (share) => left + share * (width - left - right);
  const bottom = top + rowHeight * PLAYERS.length;
  const chart = svg("svg", { width, height: bottom + 24, "aria-hidden": "true" });
  for (const share of [0, 0.25, 0.5, 0.75, 1]) {
    chart.append(line(x(share), top, x(share), bottom, "tick"),
      text(x(share), bottom + 16, `${100 * share}\u00a0%`, { "text-anchor": "middle" }));
  }
  const ceiling = x(data.num_solvable / data.mazes.length);
  chart.append(line(ceiling, top - 4, ceiling, bottom, "ceiling"),
    text(ceiling, top - 9, "ceiling", { "text-anchor": ceiling > width - 60 ? "end" : "middle" }));
  PLAYERS.forEach((who, index) => {
    const y = top + rowHeight * (index + 0.5);
    const { share, low, high } = data[who].rate;
    chart.append(text(left - 12, y + 4, who, { "text-anchor": "end", class: who }),
      svg("g", { class: who },
        line(x(low), y, x(high), y, "whisker"),
        line(x(low), y - 5, x(low), y + 5, "whisker"),
        line(x(high), y - 5, x(high), y + 5, "whisker"),
        svg("circle", { class: "dot", cx: x(share), cy: y, r: 5.5 })));
  });
  return chart;
}

function lengthsChart(data, width) {
  const [left, right, top, bottom, height] = [46, 8, 12, 208, 246];
  const column = (width - left - right) / data.lengths.length;
  const y = (share) => bottom - share * (bottom - top);
  const chart = svg("svg", { width, height, "aria-hidden": "true" });
  for (const share of [0, 0.25, 0.5, 0.75, 1]) {
    chart.append(line(left, y(share), width - right, y(share), "tick"),
      text(left - 8, y(share) + 4, `${100 * share}\u00a0%`, { "text-anchor": "end" }));
  }
  data.lengths.forEach((row, index) => {
    const middle = left + column * (index + 0.5);
    const reach = Math.min(column * 0.36, 44);
    const label = row.shortest === row.longest ? row.shortest : `${row.shortest}\u2013${row.longest}`;
    const top = y(row.solvable / row.base.num_mazes);
    chart.append(line(middle - reach, top, middle + reach, top, "ceiling"),
      text(middle, bottom + 18, String(label), { "text-anchor": "middle", class: "strong" }),
      text(middle, bottom + 33, `n = ${row.base.num_mazes}`, { "text-anchor": "middle" }));
    PLAYERS.forEach((who, side) => {
      const x = middle + (side ? 1 : -1) * Math.min(column * 0.16, 15);
      const { share, low, high } = row[who];
      chart.append(svg("g", { class: who },
        line(x, y(low), x, y(high), "whisker"),
        svg("circle", { class: "dot", cx: x, cy: y(share), r: 5 })));
    });
  });
  return chart;
}

function valueText(curve, value) {
  if (value === null) return "no value";
  if (curve.unit === "share") return percent(value);
  const digits = value !== 0 && Math.abs(value) < 0.001 ? value.toExponential(1) : Number(value.toPrecision(3));
  return curve.unit ? `${digits}\u00a0${curve.unit}` : String(digits);
}

// The value at the top of a panel; none for a curve that never leaves zero.
function scaleText(curve, known) {
  const most = Math.max(0, ...known);
  if (curve.unit === "share") return "100\u00a0%";
  return most > 0 ? valueText({ unit: "" }, most) : "";
}

// A panel reads out the step that is pointed at, else the evaluated one; all panels together.
function trainingPanels(container, data) {
  const { steps, curves } = data.training;
  const evaluated = Math.max(0, steps.findLastIndex((step) => step <= data.step));
  const panels = curves.map((curve) => {
    const value = html("span", "value");
    const chart = html("div", "chart");
    const panel = html("figure", "panel", html("figcaption", "", html("span", "", curve.title), value), chart);
    container.append(panel);
    return { curve, chart, value, mark: null };
  });
  const show = (index) => {
    for (const panel of panels) {
      const value = panel.curve.values[index];
      panel.value.textContent = `${index === evaluated ? "" : `step ${steps[index]}: `}${valueText(panel.curve, value)}`;
      panel.mark?.(index);
    }
  };
  for (const panel of panels) {
    drawAtWidth(panel.chart, (width) => {
      const [chart, mark, nearest] = curveChart(panel.curve, data, width);
      panel.mark = mark;
      chart.addEventListener("pointermove", (event) => show(nearest(event.offsetX)));
      chart.addEventListener("pointerleave", () => show(evaluated));
      mark(evaluated);
      return chart;
    });
  }
  show(evaluated);
}

function curveChart(curve, data, width) {
  const { steps, resumed } = data.training;
  const [left, right, top, bottom, height] = [6, 8, 20, 80, 98];
  const known = curve.values.filter((value) => value !== null);
  const low = Math.min(0, ...known);
  const high = curve.unit === "share" ? 1 : Math.max(...known, 0) || 1;
  const span = Math.max(1, steps.at(-1) - steps[0]);
  const x = (step) => left + ((step - steps[0]) / span) * (width - left - right);
  const y = (value) => bottom - ((value - low) / (high - low)) * (bottom - top);
  const chart = svg("svg", { width, height, "aria-hidden": "true" },
    line(left, y(low), width - right, y(low), "axis"),
    line(left, top, width - right, top, "tick"),
    text(left, height - 3, String(steps[0])),
    text(width - right, height - 3, `step ${steps.at(-1)}`, { "text-anchor": "end" }),
    text(left, top - 6, scaleText(curve, known)),
    ...resumed.map((step) => line(x(step), top, x(step), bottom, "resumed")));
  let d = "";
  curve.values.forEach((value, index) => {
    if (value === null) return;
    const starts = index === 0 || curve.values[index - 1] === null;
    d += `${starts ? "M" : "L"}${x(steps[index]).toFixed(1)} ${y(value).toFixed(1)}`;
  });
  const dot = svg("circle", { class: "dot", r: 4 });
  chart.append(svg("g", { class: "adapter" }, svg("path", { class: "curve", d }), dot));
  const mark = (index) => {
    const value = curve.values[index];
    dot.setAttribute("visibility", value === null ? "hidden" : "visible");
    dot.setAttribute("cx", x(steps[index]));
    dot.setAttribute("cy", y(value ?? 0));
  };
  const nearest = (at) => steps.reduce(
    (best, step, index) => (Math.abs(x(step) - at) < Math.abs(x(steps[best]) - at) ? index : best), 0);
  return [chart, mark, nearest];
}
