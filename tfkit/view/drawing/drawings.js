"use strict";
// Folds and unfolds boxes. The layout is that of layout.py: rows are as high as their highest box.
for (const { prefix, gap, legend, width, nodes, edges } of JSON.parse(document.getElementById("data").textContent)) {
  const root = document.getElementById(prefix + "drawing");
  const boxes = [...root.querySelectorAll("g.node")], paths = [...root.querySelectorAll("path[marker-end]")];
  const folded = nodes.map(() => false);

  function place() {
    const tops = [gap], last = Math.max(...nodes.map(([, row]) => row));
    for (let row = 0; row <= last; row++) {
      const heights = nodes.map((node, at) => node[1] === row ? node[folded[at] ? 3 : 2] : 0);
      tops.push(tops[row] + Math.max(...heights) + gap);
    }
    boxes.forEach((box, at) => {
      box.setAttribute("transform", `translate(${nodes[at][0]} ${tops[nodes[at][1]]})`);
      box.setAttribute("aria-expanded", !folded[at]);
      box.querySelector(".folded").setAttribute("display", folded[at] ? "inline" : "none");
      box.querySelector(".unfolded").setAttribute("display", folded[at] ? "none" : "inline");
    });
    paths.forEach((path, at) => path.setAttribute("d", "M" + edges[at].map(([x, row, node, open, closed]) =>
      `${x} ${tops[row] + (node >= 0 && folded[node] ? closed : open)}`).join("L")));
    root.querySelector(".legend").setAttribute("transform", `translate(20 ${tops[last + 1]})`);
    root.setAttribute("viewBox", `0 0 ${width} ${tops[last + 1] + legend}`);
  }
  boxes.forEach((box, at) => {
    const turn = () => { folded[at] = !folded[at]; place(); };
    box.addEventListener("click", turn);
    box.addEventListener("keydown", event => {
      if (event.key === "Enter" || event.key === " ") { event.preventDefault(); turn(); }
    });
  });
  document.querySelectorAll("button[data-fold]").forEach(button => button.addEventListener("click", () => {
    folded.fill(button.dataset.fold === "true");
    place();
  }));
}
