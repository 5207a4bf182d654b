"use strict";
// Folds and unfolds boxes and layers. The layout is that of layout.py: rows are as high as their highest box.
const FACES = [".folded", ".unfolded", ".single"], [FOLDED, UNFOLDED, SINGLE] = [0, 1, 2];
for (const { prefix, gap, legend, width, nodes, edges } of JSON.parse(document.getElementById("data").textContent)) {
  const root = document.getElementById(prefix + "drawing");
  const boxes = [...root.querySelectorAll("g.node")], paths = [...root.querySelectorAll("path[marker-end]")];
  const layers = new Map([...root.querySelectorAll("g.layers")].map((button) => [Number(button.dataset.node), button]));
  const states = nodes.map(() => UNFOLDED);

  function place() {
    const tops = [gap], last = Math.max(...nodes.map(([, row]) => row));
    for (let row = 0; row <= last; row++) {
      const heights = nodes.map((node, at) => node[1] === row ? node[2 + states[at]] : 0);
      tops.push(tops[row] + Math.max(...heights) + gap);
    }
    boxes.forEach((box, at) => {
      const where = `translate(${nodes[at][0]} ${tops[nodes[at][1]]})`, button = layers.get(at);
      box.setAttribute("transform", where);
      box.setAttribute("aria-expanded", states[at] !== FOLDED);
      FACES.forEach((face, state) => box.querySelector(face)?.setAttribute("display", state === states[at] ? "inline" : "none"));
      if (!button) return;
      button.setAttribute("transform", where);
      button.setAttribute("display", states[at] === FOLDED ? "none" : "inline");
      button.setAttribute("aria-expanded", states[at] === SINGLE);
      button.lastChild.textContent = `${states[at] === SINGLE ? "▾" : "▸"} each layer`;
    });
    paths.forEach((path, at) => path.setAttribute("d", "M" + edges[at].map(([x, row, node, ...heights]) =>
      `${x} ${tops[row] + heights[node < 0 ? UNFOLDED : states[node]]}`).join("L")));
    root.querySelector(".legend").setAttribute("transform", `translate(20 ${tops[last + 1]})`);
    root.setAttribute("viewBox", `0 0 ${width} ${tops[last + 1] + legend}`);
  }
  function press(button, turn) {
    button.addEventListener("click", () => { turn(); place(); });
    button.addEventListener("keydown", (event) => {
      if (event.key === "Enter" || event.key === " ") { event.preventDefault(); turn(); place(); }
    });
  }
  boxes.forEach((box, at) => press(box, () => { states[at] = states[at] === FOLDED ? UNFOLDED : FOLDED; }));
  layers.forEach((button, at) => press(button, () => { states[at] = states[at] === SINGLE ? UNFOLDED : SINGLE; }));
  document.querySelectorAll("button[data-face]").forEach((button) => button.addEventListener("click", () => {
    states.forEach((_, at) => { states[at] = button.dataset.face === "2" && !layers.has(at) ? UNFOLDED : Number(button.dataset.face); });
    place();
  }));
}
