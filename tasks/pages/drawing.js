"use strict";
// Mazes and walks as SVG. One cell is one unit; the model's words only ever become text nodes.

const SVG = "http://www.w3.org/2000/svg";
const PLAYERS = ["base", "adapter"];
const DIRECTIONS = [[0, 1], [-1, 0], [0, -1], [1, 0]];
// In a picture with both walks each moves a little aside, so that a shared way shows both.
const ASIDE = { base: -0.13, adapter: 0.13 };

function svg(name, attributes, ...children) {
  const node = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

function html(name, className, ...children) {
  const node = document.createElement(name);
  if (className) node.className = className;
  node.append(...children);
  return node;
}

function cellsOf(maze, walk) {
  return [maze.start, ...walk.turns.map((turn) => turn.agent)];
}

// One rectangle a run of walls, not one a cell: no seams show between them.
function walls(grid) {
  const runs = grid.flatMap((row, y) =>
    [...row.matchAll(/1+/g)].map((run) => `M${run.index} ${y}h${run[0].length}v1h-${run[0].length}z`));
  return svg("path", { class: "walls", d: runs.join("") });
}

function ground(maze) {
  const [row, column] = maze.target;
  const [width, height] = [maze.grid[0].length, maze.grid.length];
  // The rim is wall all round: half of it says so.
  return svg("svg", { viewBox: `0.5 0.5 ${width - 1} ${height - 1}`, "aria-hidden": "true" },
    svg("rect", { class: "floor", width, height }),
    walls(maze.grid),
    svg("rect", { class: "target", x: column + 0.12, y: row + 0.12, width: 0.76, height: 0.76 }),
    svg("circle", { class: "start", cx: maze.start[1] + 0.5, cy: maze.start[0] + 0.5, r: 0.27 }));
}

// The walk of the first `turns` turns: its way, the walls it ran into, and where it stayed long.
function trail(maze, walk, who, turns, aside) {
  const cells = cellsOf(maze, walk).slice(0, turns + 1);
  const at = ([row, column]) => [column + 0.5 + aside, row + 0.5 + aside];
  const points = cells.map((cell) => at(cell).join(" "));
  const group = svg("g", { class: `trail ${who}` },
    svg("path", { class: "way", d: `M${points.join("L")}` }));
  for (const [key, count] of visits(cells)) {
    if (count < 2) continue;
    const [cx, cy] = at(key.split(",").map(Number));
    group.append(svg("circle", { class: "stay", cx, cy, r: Math.min(0.36, 0.1 * Math.sqrt(count)) }));
  }
  for (const d of bumps(cells, walk.turns.slice(0, turns), at)) group.append(svg("path", { class: "bump", d }));
  if (turns >= walk.turns.length && walk.diagnosis !== "solved") group.append(cross(at(cells.at(-1))));
  return group;
}

function visits(cells) {
  const counts = new Map();
  for (const cell of cells) counts.set(String(cell), (counts.get(String(cell)) ?? 0) + 1);
  return counts;
}

function bumps(cells, turns, at) {
  const found = new Set();
  turns.forEach((turn, index) => {
    const direction = turn.outcome === "wall" && DIRECTIONS[turn.action.match(/,\s*([0-3])/)?.[1]];
    if (!direction) return;
    const [x, y] = at(cells[index]);
    const [down, right] = direction;
    const [edgeX, edgeY] = [x + 0.4 * right, y + 0.4 * down];
    found.add(`M${edgeX - 0.26 * down} ${edgeY - 0.26 * right}L${edgeX + 0.26 * down} ${edgeY + 0.26 * right}`);
  });
  return found;
}

function cross([x, y]) {
  const r = 0.24;
  return svg("path", {
    class: "cross",
    d: `M${x - r} ${y - r}L${x + r} ${y + r}M${x + r} ${y - r}L${x - r} ${y + r}`,
  });
}

function pictureOfBoth(maze) {
  const picture = ground(maze);
  for (const who of PLAYERS) {
    picture.append(trail(maze, maze[who], who, maze[who].turns.length, ASIDE[who]));
  }
  return picture;
}

function pictureOfOne(maze, who, turns) {
  const picture = ground(maze);
  picture.append(trail(maze, maze[who], who, turns, 0));
  const [row, column] = cellsOf(maze, maze[who])[Math.min(turns, maze[who].turns.length)];
  const isOver = turns >= maze[who].turns.length;
  if (!isOver || maze[who].diagnosis === "solved") {
    picture.append(svg("circle", { class: `player ${who}`, cx: column + 0.5, cy: row + 0.5, r: 0.3 }));
  }
  return picture;
}
