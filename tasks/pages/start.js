// Brings the page to life: what is here without it is text and tables.

const FILTERS = [
  ["all", () => true],
  ["only the adapter solves", (base, adapter) => adapter && !base],
  ["only the base solves", (base, adapter) => base && !adapter],
  ["both solve", (base, adapter) => base && adapter],
  ["neither solves", (base, adapter) => !base && !adapter],
];

function start() {
  const data = JSON.parse(document.getElementById("data").textContent);
  drawAtWidth(document.getElementById("intervals"), (width) => intervalsChart(data, width));
  drawAtWidth(document.getElementById("by-length"), (width) => lengthsChart(data, width));
  const panels = document.getElementById("panels");
  if (panels) trainingPanels(panels, data);
  startMazes(data);
}

function startMazes(data) {
  const tiles = [...document.querySelectorAll(".tile")];
  const shown = () => tiles.filter((tile) => !tile.parentElement.hidden);
  const replay = new Replay(data, () => shown().map((tile) => Number(tile.dataset.index)), (index) => tiles[index].focus());
  tiles.forEach((tile, index) => {
    tile.querySelector(".picture").append(pictureOfBoth(data.mazes[index]));
    tile.addEventListener("click", () => replay.open(index));
  });
  document.getElementById("grid").addEventListener("keydown", (event) => moveFocus(event, shown()));
  startFilters(data, tiles);
}

function startFilters(data, tiles) {
  const buttons = FILTERS.map(([name, test]) => {
    const keeps = data.mazes.map((maze) => test(maze.base.diagnosis === "solved", maze.adapter.diagnosis === "solved"));
    const count = keeps.filter(Boolean).length;
    const button = html("button", "", `${name} `, html("span", "count", String(count)));
    button.type = "button";
    button.disabled = count === 0;
    button.addEventListener("click", () => {
      tiles.forEach((tile, index) => { tile.parentElement.hidden = !keeps[index]; });
      for (const each of buttons) each.setAttribute("aria-pressed", String(each === button));
      document.getElementById("shown").textContent = `${count} mazes shown`;
    });
    button.setAttribute("aria-pressed", String(name === "all"));
    return button;
  });
  document.getElementById("filters").append(...buttons);
}

// Arrow keys walk over the grid as it is laid out now; Tab goes from maze to maze as ever.
function moveFocus(event, tiles) {
  const at = tiles.indexOf(document.activeElement);
  if (at < 0) return;
  const columns = tiles.filter((tile) => tile.offsetTop === tiles[0].offsetTop).length;
  const by = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns }[event.key];
  if (by === undefined) return;
  event.preventDefault();
  tiles[at + by]?.focus();
}

start();
