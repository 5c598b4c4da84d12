// The replay of one maze: both walks turn by turn, side by side, with the model's words.

class Replay {
  constructor(data, shownIndices, onClose) {
    this.data = data;
    this.shownIndices = shownIndices;
    this.dialog = document.getElementById("replay");
    this.slider = document.getElementById("turn");
    this.playButton = document.getElementById("play");
    this.timer = 0;
    this.listen(onClose);
  }

  listen(onClose) {
    const on = (id, action) => document.getElementById(id).addEventListener("click", action);
    on("play", () => this.toggle());
    on("back", () => this.step(-1));
    on("forward", () => this.step(1));
    on("earlier-maze", () => this.change(-1));
    on("later-maze", () => this.change(1));
    on("close", () => this.dialog.close());
    this.slider.addEventListener("input", () => { this.pause(); this.goTo(Number(this.slider.value)); });
    this.dialog.addEventListener("keydown", (event) => this.onKey(event));
    this.dialog.addEventListener("close", () => { this.pause(); onClose(this.index); });
    this.dialog.addEventListener("click", (event) => {
      if (event.target === this.dialog && isOutside(event, this.dialog)) this.dialog.close();
    });
  }

  open(index) {
    this.load(index);
    this.dialog.showModal();
    this.dialog.scrollTop = 0;
    this.playButton.focus();
    if (!matchMedia("(prefers-reduced-motion: reduce)").matches) this.play();
  }

  load(index) {
    this.pause();
    this.index = index;
    this.maze = this.data.mazes[index];
    this.numTurns = Math.max(...PLAYERS.map((who) => this.maze[who].turns.length));
    this.slider.max = this.numTurns;
    document.getElementById("replay-title").replaceChildren(
      `Maze\u00a0${this.maze.seed} `, html("small", "", `${this.maze.turns_needed} turns needed, ${this.data.max_turns} allowed`));
    for (const who of PLAYERS) {
      this.words(who).replaceChildren(...this.maze[who].turns.map((turn, at) => this.line(turn, at + 1)));
      this.words(who).scrollTop = 0;
    }
    this.goTo(0);
  }

  words(who) {
    return this.dialog.querySelector(`ol.turns.${who}`);
  }

  line(turn, number) {
    const jump = html("button", "jump", html("span", "number", String(number)), html("span", turn.outcome, turn.outcome));
    jump.type = "button";
    jump.setAttribute("aria-label", `turn ${number}, ${turn.outcome}`);
    jump.addEventListener("click", () => { this.pause(); this.goTo(number); });
    return html("li", "", jump, wordsOf(turn));
  }

  goTo(turn) {
    this.turn = Math.max(0, Math.min(turn, this.numTurns));
    this.slider.value = this.turn;
    document.getElementById("turn-number").textContent = `turn ${this.turn} of ${this.numTurns}`;
    for (const who of PLAYERS) {
      const walk = this.maze[who];
      const board = this.dialog.querySelector(`.board.${who}`);
      board.querySelector(".picture").replaceChildren(pictureOfOne(this.maze, who, this.turn));
      board.querySelector(".verdict").textContent = verdict(walk, this.turn);
      this.mark(who, Math.min(this.turn, walk.turns.length));
    }
    this.label();
  }

  // Only the list scrolls, never the dialog around it.
  mark(who, turn) {
    const list = this.words(who);
    list.querySelector("[aria-current]")?.removeAttribute("aria-current");
    const item = list.children[turn - 1];
    if (!item) return;
    item.setAttribute("aria-current", "step");
    const [above, below] = [item.offsetTop, item.offsetTop + item.offsetHeight - list.clientHeight];
    if (list.scrollTop > above || list.scrollTop < below) list.scrollTop = Math.min(above, below + 8);
  }

  step(by) {
    this.pause();
    this.goTo(this.turn + by);
  }

  change(by) {
    const shown = this.shownIndices();
    const next = shown[shown.indexOf(this.index) + by];
    if (next !== undefined) this.load(next);
  }

  toggle() {
    if (this.timer) this.pause();
    else this.play();
  }

  play() {
    if (this.turn === this.numTurns) this.goTo(0);
    const pace = Math.max(120, Math.min(450, 9000 / this.numTurns));
    this.timer = setInterval(() => {
      this.goTo(this.turn + 1);
      if (this.turn === this.numTurns) this.pause();
    }, pace);
    this.label();
  }

  pause() {
    clearInterval(this.timer);
    this.timer = 0;
    if (this.maze) this.label();
  }

  label() {
    this.playButton.textContent = this.timer ? "pause" : this.turn === this.numTurns ? "again" : "play";
  }

  onKey(event) {
    if (event.altKey || event.ctrlKey || event.metaKey) return;
    const onSlider = event.target === this.slider;
    const actions = { PageUp: () => this.change(-1), PageDown: () => this.change(1) };
    if (!onSlider) {
      Object.assign(actions, { ArrowLeft: () => this.step(-1), ArrowRight: () => this.step(1) });
    }
    // A button takes the space bar itself.
    if (event.target.tagName !== "BUTTON") actions[" "] = () => this.toggle();
    if (!actions[event.key]) return;
    event.preventDefault();
    actions[event.key]();
  }
}

function isOutside(event, element) {
  const box = element.getBoundingClientRect();
  return event.clientX < box.left || event.clientX > box.right || event.clientY < box.top || event.clientY > box.bottom;
}

// The words as they came, with the action that was read from them marked where there is more.
function wordsOf(turn) {
  if (turn.reply === "") return html("p", "silent", "no words");
  const at = turn.reply.lastIndexOf(turn.action);
  if (at < 0 || turn.reply === turn.action) return html("p", "", turn.reply);
  const end = at + turn.action.length;
  return html("p", "", turn.reply.slice(0, at), html("mark", "", turn.action), turn.reply.slice(end));
}

function verdict(walk, turn) {
  if (turn === 0) return "at the start";
  if (turn < walk.turns.length) return walk.turns[turn - 1].outcome;
  const lost = [["wall", "into walls"], ["loop", "round in a loop"], ["unparsable", "unparsable"]]
    .filter(([cause]) => walk.lost[cause])
    .map(([cause, words]) => `${walk.lost[cause]} ${words}`);
  const passed = walk.diagnosis !== "solved" && walk.reached_turn !== null
    ? [`it had stood on the target after turn ${walk.reached_turn}`] : [];
  const after = `${walk.diagnosis}, ${walk.turns.length} turns`;
  return [lost.length ? `${after} (${lost.join(", ")})` : after, ...passed].join("; ");
}
