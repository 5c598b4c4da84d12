"use strict";
// The page draws what /play tells. The models' words only ever become text nodes.

const SVG = "http://www.w3.org/2000/svg";
const byId = (id) => document.getElementById(id);
const PLAYERS = { champion: byId("champion"), base: byId("base") };
let maze = null;
let isDrawn = false; // by hand: then the cells count, not the seed
const walks = {};

function svg(name, attributes, ...children) {
  const node = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

function draw(who) {
  const box = PLAYERS[who].querySelector(".maze");
  if (!maze) return box.replaceChildren();
  const [height, width] = [maze.grid.length, maze.grid[0].length];
  const cells = maze.grid.flatMap((row, y) => [...row].map((kind, x) => cell(kind, y, x, who)));
  const at = ([row, column]) => [column + 0.5, row + 0.5];
  const [row, column] = maze.target;
  const walk = walks[who];
  const [cx, cy] = at(walk.at(-1));
  box.replaceChildren(svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `maze of ${who}` },
    ...cells,
    svg("rect", { class: "target", x: column + 0.12, y: row + 0.12, width: 0.76, height: 0.76 }),
    svg("path", { class: "way", d: `M${walk.map((each) => at(each).join(" ")).join("L")}` }),
    svg("circle", { class: "player", cx, cy, r: 0.3 })));
}

function cell(kind, y, x, who) {
  const isRim = y === 0 || x === 0 || y === maze.grid.length - 1 || x === maze.grid[0].length - 1;
  const isEnd = [maze.start, maze.target].some(([row, column]) => row === y && column === x);
  const node = svg("rect", { class: kind === "1" ? "wall" : "floor", x, y, width: 1.01, height: 1.01 });
  if (who === "champion" && !isRim && !isEnd) {
    node.classList.add("can-change");
    node.dataset.cell = `${y},${x}`;
    node.addEventListener("click", () => change(y, x));
  }
  return node;
}

function change(y, x) {
  if (byId("play").disabled) return;
  const row = maze.grid[y];
  maze.grid[y] = row.slice(0, x) + (row[x] === "1" ? "0" : "1") + row.slice(x + 1);
  isDrawn = true;
  byId("seed").value = "";
  byId("seed").required = false;
  clear();
}

function clear() {
  for (const [who, figure] of Object.entries(PLAYERS)) {
    walks[who] = maze ? [maze.start] : [];
    figure.querySelector(".turns").replaceChildren();
    figure.querySelector(".outcome").textContent = "";
    draw(who);
  }
}

function hear(event) {
  if (event.maze) {
    maze = event.maze;
    byId("message").textContent = "";
    return clear();
  }
  const who = event.player === "base" ? "base" : "champion";
  const figure = PLAYERS[who];
  if (event.end) {
    figure.querySelector(".outcome").textContent = `${event.end}, ${walks[who].length - 1} turns`;
    return undefined;
  }
  walks[who].push(event.turn.agent);
  const item = document.createElement("li");
  item.textContent = `${event.turn.reply} \u2192 ${event.turn.outcome}`;
  const list = figure.querySelector(".turns");
  list.append(item);
  list.scrollTop = list.scrollHeight;
  return draw(who);
}

async function play(asked) {
  byId("play").disabled = true;
  byId("message").textContent = "";
  try {
    const headers = { "content-type": "application/json" };
    if (byId("key").value) headers.authorization = `Bearer ${byId("key").value}`;
    const answer = await fetch("/play", { method: "POST", headers, body: JSON.stringify(asked) });
    if (!answer.ok) throw new Error((await answer.json()).error.message);
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let text = "";
    for (let part = await reader.read(); !part.done; part = await reader.read()) {
      text += part.value;
      const lines = text.split("\n");
      text = lines.pop();
      lines.forEach((line) => hear(JSON.parse(line)));
    }
  } catch (error) {
    byId("message").textContent = error.message;
  } finally {
    byId("play").disabled = false;
  }
}

byId("form").addEventListener("submit", (event) => {
  event.preventDefault();
  const seed = byId("seed").value;
  if (isDrawn && !seed) return play({ grid: maze.grid, start: maze.start, target: maze.target });
  isDrawn = false;
  return play({ seed: Number(seed) });
});
byId("another").addEventListener("click", () => {
  byId("seed").value = String(Math.floor(Math.random() * 2 ** 31));
  byId("form").requestSubmit();
});
byId("seed").addEventListener("input", () => { byId("seed").required = true; });
byId("seed").value = "123";
