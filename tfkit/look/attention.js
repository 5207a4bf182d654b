"use strict";
const LIGHT = [[255, 255, 255], [198, 219, 239], [107, 174, 214], [33, 113, 181], [8, 48, 107]];
const DARK = [[22, 24, 29], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]];
const HUES = { light: ["#1f5fbf", "#a8470a", "#0f7a4a", "#8a2be2", "#b3261e", "#00707a", "#6b5b00", "#a0206a"],
               dark: ["#8ab4ff", "#ff9d5c", "#5fd39a", "#c9a0ff", "#ff8a80", "#5fd4e0", "#e0cc50", "#ff8fc8"] };
const DASHES = ["", "7 3", "2 3", "9 3 2 3", "12 4", "4 4", "1 4", "9 2 2 2 2 2"];
const MEAN = -1, ROW = 22, MANY = 60, LINES_FROM = 0.05;
const dark = matchMedia("(prefers-color-scheme: dark)");
const ofScheme = (light, night) => dark.matches ? night : light;
const number = (value) => value === null ? "" : value >= 0.0995 || value === 0 ? value.toFixed(2) : value.toPrecision(2);
const kindOf = (site) => site.name.replace(/\.[0-9]+\./, " ").replace("_attention", "");
const short = (name, most = 14) => [...name].length > most ? [...name].slice(0, most - 1).join("") + "…" : name;

function element(name, attributes = {}, ...children) {
  const svg = ["svg", "line", "text", "title", "rect"].includes(name);
  const made = svg ? document.createElementNS("http://www.w3.org/2000/svg", name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (value !== false && value !== null) made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...children);
  return made;
}

function table(caption, columns, rows) {
  const head = element("thead", {}, element("tr", {}, ...columns.map((name) => element("th", { scope: "col" }, name))));
  const body = rows.map((cells) => element("tr", {}, ...cells.map((cell, at) =>
    element(at ? "td" : "th", at ? {} : { scope: "row" }, cell))));
  return element("table", {}, element("caption", {}, caption), head, element("tbody", {}, ...body));
}

function details(summary, fill, open = false) {
  const place = element("div", { tabindex: "0", role: "group", "aria-label": summary });
  const made = element("details", { ontoggle: () => { if (made.open && !place.firstChild) place.append(...[fill()].flat()); } },
    element("summary", {}, summary), place);
  made.open = open;
  return made;
}

async function bytesOf(text) {
  const packed = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

function colour(share) {
  const stops = ofScheme(LIGHT, DARK), at = Math.min(share, 1) * (stops.length - 1), low = Math.min(Math.floor(at), stops.length - 2);
  return stops[low].map((value, channel) => Math.round(value + (stops[low + 1][channel] - value) * (at - low)));
}

/* The weights of a map, with 8 bits: one pixel per query and key. */
function pixelsOf(map) {
  const image = new ImageData(map.K, map.Q), pixels = new Uint32Array(image.data.buffer);
  const ramp = new Uint32Array(Uint8Array.from([...Array(256).keys()].flatMap((at) => [...colour(at / 255), 255])).buffer);
  map.values.forEach((value, at) => { pixels[at] = ramp[Math.round(value / map.most * 255)]; });
  const made = element("canvas", { width: map.K, height: map.Q });
  made.getContext("2d").putImageData(image, 0, 0);
  return made;
}

class Run {
  constructor(data, place, number, view) {
    Object.assign(this, { data, place, number, view, head: MEAN, query: 0, key: 0, maps: new Map() });
    for (const site of data.sites) Object.assign(site, { queries: data.names[site.queries], keys: data.names[site.keys] });
    this.site = data.sites.find((site) => site.name.endsWith("cross_attention")) ?? data.sites[0];
    if (this.site?.patches && view === "map") this.view = "patches";
    this.build();
  }

  /* Show the site, head and view of another run, that of the text chosen before. */
  follow(other) {
    if (!this.site || !other.site) return;
    const site = this.data.sites.find((each) => each.name === other.site.name) ?? this.site;
    this.view = other.view;
    this.radios.forEach((label) => { label.firstChild.checked = label.firstChild.value === this.view; });
    this.choose(site, Math.min(other.head, site.heads.length - 1));
  }

  async map(site, head) {
    const name = `${site.name}/${head}`;
    if (!this.maps.has(name)) this.maps.set(name, this.decoded(site, head));
    return this.maps.get(name);
  }

  async decoded(site, head) {
    const Q = site.queries.length, K = site.keys.length;
    let values;
    if (head === MEAN) {
      values = new Float32Array(Q * K);
      for (let each = 0; each < site.heads.length; each++) {
        (await this.map(site, each)).values.forEach((value, at) => { values[at] += value / site.heads.length; });
      }
    } else values = Float32Array.from(await bytesOf(site.heads[head]), (value) => value / 255);
    return { Q, K, values, most: values.reduce((one, other) => Math.max(one, other), 1e-9), at: (q, k) => values[q * K + k] };
  }

  build() {
    const { data, place } = this;
    place.append(...data.notices.map((text) => element("p", { class: "note" }, text)));
    if (data.sites.length) this.buildViewer();
    place.append(...this.tables());
  }

  buildViewer() {
    const { data, place, number: run } = this;
    const draw = () => this.draw();
    this.sites = element("select", { id: `site${run}`, onchange: () => this.choose(data.sites[this.sites.selectedIndex], MEAN) },
      ...data.sites.map((site) => element("option", {}, site.name)));
    this.heads = element("select", { id: `head${run}`, onchange: () => { this.head = this.heads.selectedIndex - 1; draw(); } });
    const views = [["map", "heat map"], ["lines", "lines"], ["many", "all heads"]];
    if (data.sites.some((site) => site.patches)) views.unshift(["patches", "patches"]);
    this.radios = views.map(([view, label]) => {
      const radio = element("input", { type: "radio", name: `view${run}`, value: view, onchange: () => { this.view = view; draw(); } });
      radio.checked = view === this.view;
      return element("label", {}, radio, ` ${label}`);
    });
    this.stage = element("div", { class: "stage" });
    this.caption = element("p", { class: "caption", "aria-live": "polite" });
    place.append(
      element("div", { class: "controls" },
        element("label", { for: `site${run}` }, "Site ", this.sites), element("label", { for: `head${run}` }, "Head ", this.heads),
        element("fieldset", {}, element("legend", {}, "View"), ...this.radios)),
      this.stage, this.caption);
    this.choose(this.site, MEAN);
  }

  choose(site, head) {
    this.site = site;
    this.head = head;
    this.query = Math.min(this.query, site.queries.length - 1);
    this.key = Math.min(this.key, site.keys.length - 1);
    this.sites.selectedIndex = this.data.sites.indexOf(site);
    const count = site.heads.length;
    this.heads.replaceChildren(element("option", {}, count > 1 ? `mean of ${count} heads` : "the only head"),
      ...(count > 1 ? [...Array(count).keys()].map((each) => element("option", {}, String(each))) : []));
    this.heads.selectedIndex = head + 1;
    this.draw();
  }

  /* The chosen view; a text has no patches. */
  shown() {
    return this.view === "patches" && !this.site.patches ? "map" : this.view;
  }

  async draw() {
    const { site, head } = this, view = this.shown(), focused = this.stage.contains(document.activeElement);
    const map = await this.map(site, head);
    const made = view === "map" ? this.heatMap(map) : view === "lines" ? await this.lines()
      : view === "many" ? await this.many() : await this.patches(map);
    if (site !== this.site || head !== this.head || view !== this.shown()) return;
    this.stage.replaceChildren(...made);
    if (focused) this.stage.querySelector("[aria-pressed=true], [tabindex]")?.focus({ preventScroll: true });
    this.describe(map);
    this.fillStrongest?.(map);
  }

  get headName() {
    return this.head !== MEAN ? `head ${this.head}` : this.site.heads.length > 1 ? "mean of the heads" : "the only head";
  }

  describe(map) {
    const { site, query, key } = this;
    const row = [...map.values.subarray(query * map.K, (query + 1) * map.K)];
    const best = row.indexOf(Math.max(...row));
    const strongest = `strongest: ${site.keys[best]}, ${number(row[best])}.`;
    this.caption.textContent = `${site.name}, ${this.headName}. Query ${query + 1}, ${site.queries[query]}: ` +
      (["lines", "many"].includes(this.shown()) ? strongest
        : `weight ${number(map.at(query, key))} on key ${key + 1}, ${site.keys[key]}; ${strongest}`) +
      ` The scale ends at ${number(map.most)}.`;
  }

  /* Arrows move, digits choose a head, m their mean, Page Up and Page Down the layer. */
  pressed(event, across) {
    const { site, data } = this, steps = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1],
      Home: [0, -site.keys.length], End: [0, site.keys.length] };
    const within = (value, count) => Math.max(0, Math.min(count - 1, value));
    if (event.ctrlKey || event.altKey || event.metaKey) return;
    if (steps[event.key]) {
      const [down, right] = steps[event.key];
      this.query = within(this.query + down, site.queries.length);
      this.key = within(this.key + (across ? right : 0), site.keys.length);
      this.draw();
    } else if (/^[0-9]$/.test(event.key) && Number(event.key) < site.heads.length && site.heads.length > 1) this.choose(site, Number(event.key));
    else if (event.key === "m") this.choose(site, MEAN);
    else if (event.key === "PageUp" || event.key === "PageDown") {
      this.choose(data.sites[within(data.sites.indexOf(site) + (event.key === "PageUp" ? -1 : 1), data.sites.length)], MEAN);
    } else return;
    event.preventDefault();
  }

  widget(made, label, across = true) {
    const attributes = { tabindex: "0", role: "application", "aria-roledescription": "chart", "aria-label": `${label}. ` +
      "Arrow keys move, digits choose a head, m the mean, Page Up and Page Down the site." };
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    made.addEventListener("keydown", (event) => this.pressed(event, across));
    return made;
  }

  heatMap(map) {
    const { site, query, key } = this, most = Math.max(map.Q, map.K);
    const room = Math.max(this.place.clientWidth, 300), labelled = most <= MANY;
    const left = labelled ? 110 : 8, top = labelled ? 96 : 8;
    const cell = Math.max(labelled ? 15 : 3, Math.min(28, Math.floor((room - left - 8) / map.K)));
    const width = left + map.K * cell + 4, height = top + map.Q * cell + 4, scale = devicePixelRatio || 1;
    const canvas = element("canvas", { width: Math.round(width * scale), height: Math.round(height * scale), style: `width:${width}px;height:${height}px` });
    const context = canvas.getContext("2d"), ink = getComputedStyle(this.place).color;
    context.scale(scale, scale);
    context.imageSmoothingEnabled = false;
    context.drawImage(pixelsOf(map), left, top, map.K * cell, map.Q * cell);
    context.strokeStyle = ink;
    context.lineWidth = 0.5;
    context.strokeRect(left, top, map.K * cell, map.Q * cell);
    if (labelled) this.axes(context, left, top, cell, ink);
    context.lineWidth = 3;
    context.strokeStyle = ofScheme("#fff", "#000");
    context.strokeRect(left + key * cell - 1, top + query * cell - 1, cell + 2, cell + 2);
    context.lineWidth = 1.5;
    context.strokeStyle = ofScheme("#b3261e", "#ff8a80");
    context.strokeRect(left + key * cell - 1, top + query * cell - 1, cell + 2, cell + 2);
    canvas.addEventListener("click", (event) => {
      const q = Math.floor((event.offsetY - top) / cell), k = Math.floor((event.offsetX - left) / cell);
      if (q >= 0 && k >= 0 && q < map.Q && k < map.K) { this.query = q; this.key = k; this.draw(); }
    });
    return [this.widget(canvas, `Heat map of ${site.name}, ${this.headName}: queries down, keys across`)];
  }

  axes(context, left, top, cell, ink) {
    const { site } = this;
    context.fillStyle = ink;
    context.font = `${Math.min(13, cell - 2)}px system-ui, sans-serif`;
    context.textBaseline = "middle";
    context.textAlign = "right";
    site.queries.forEach((name, at) => context.fillText(short(name), left - 6, top + (at + 0.5) * cell, left - 8));
    context.textAlign = "left";
    site.keys.forEach((name, at) => {
      context.save();
      context.translate(left + (at + 0.5) * cell, top - 6);
      context.rotate(-Math.PI / 2);
      context.fillText(short(name), 0, 0, top - 8);
      context.restore();
    });
  }

  async lines() {
    const { site, head, query } = this, rows = Math.max(site.queries.length, site.keys.length), height = rows * ROW + 26;
    const heads = head === MEAN && site.heads.length > 1 ? [...site.heads.keys()] : [Math.max(head, 0)];
    const svg = element("svg", { class: "lines", viewBox: `0 0 400 ${height}` });
    const hues = HUES[ofScheme("light", "dark")], at = (row) => row * ROW + 36;
    for (const [label, x, anchor] of [["queries", 130, "end"], ["keys", 270, "start"]]) {
      svg.append(element("text", { x, y: 14, "text-anchor": anchor, "font-style": "italic" }, label));
    }
    for (const each of heads) {
      const map = await this.map(site, each);
      for (let q = 0; q < map.Q; q++) {
        const row = [...map.values.subarray(q * map.K, (q + 1) * map.K)], best = Math.max(...row);
        row.forEach((weight, k) => {
          if (weight < LINES_FROM || (q !== query && (weight < best || map.Q > MANY))) return;
          const strong = q === query;
          svg.append(element("line", { x1: 136, y1: at(q) - 4, x2: 264, y2: at(k) - 4, stroke: hues[each % hues.length],
            "stroke-width": ((strong ? 1.5 : 0.6) + weight * (strong ? 4 : 1)).toFixed(2), "stroke-dasharray": DASHES[each % DASHES.length],
            "stroke-opacity": strong ? 1 : 0.6 }, element("title", {}, `head ${each}: ${site.queries[q]} to ${site.keys[k]}, ${number(weight)}`)));
        });
      }
    }
    site.queries.forEach((name, row) => svg.append(element("text", { x: 130, y: at(row), "text-anchor": "end",
      "font-weight": row === query ? 700 : 400, onclick: () => { this.query = row; this.draw(); } }, `${row === query ? "▸ " : ""}${short(name, 15)}`)));
    site.keys.forEach((name, row) => svg.append(element("text", { x: 270, y: at(row), "text-anchor": "start" }, short(name, 15))));
    const key = heads.map((each) => {
      const sample = element("svg", { viewBox: "0 0 40 8", style: "width:40px;height:8px", "aria-hidden": "true" },
        element("line", { x1: 0, y1: 4, x2: 40, y2: 4, stroke: hues[each % hues.length], "stroke-width": 3, "stroke-dasharray": DASHES[each % DASHES.length] }));
      return element("span", {}, sample, ` head ${each}  `);
    });
    const names = `Lines of ${site.name}, ${this.headName}: from the queries on the left to the keys on the right`;
    return [element("p", { style: "margin:0" }, ...key), this.widget(svg, names, false)];
  }

  async many() {
    const kind = kindOf(this.site);
    const buttons = [];
    for (const site of this.data.sites.filter((each) => kindOf(each) === kind)) {
      for (let head = 0; head < site.heads.length; head++) {
        const { entropy } = site.statistics[head], name = `${site.name}, head ${head}`;
        buttons.push(element("button", { type: "button", "aria-pressed": String(site === this.site && head === this.head),
          "aria-label": `${name}, entropy ${number(entropy)}`, onclick: () => this.choose(site, site.heads.length > 1 ? head : MEAN) },
          pixelsOf(await this.map(site, head)), `layer ${site.name.split(".")[1]}, head ${head}`));
      }
    }
    return [element("div", { class: "many" }, ...buttons)];
  }

  async patches(map) {
    const { picture } = this.data, { rows, columns, before, height, width, channels } = picture;
    this.pixels ??= await bytesOf(picture.pixels);
    const image = new ImageData(width, height);
    for (let at = 0; at < width * height; at++) {
      for (let channel = 0; channel < 3; channel++) image.data[at * 4 + channel] = this.pixels[at * channels + (channels === 3 ? channel : 0)];
      image.data[at * 4 + 3] = 255;
    }
    const source = element("canvas", { width, height }), side = 320;
    source.getContext("2d").putImageData(image, 0, 0);
    const canvas = element("canvas", { width: side * 2 + 16, height: side, style: "max-width:100%" }), context = canvas.getContext("2d");
    context.imageSmoothingEnabled = false;
    context.drawImage(source, 0, 0, side, side);
    const w = side / columns, h = side / rows, offset = side + 16;
    context.textAlign = "center";
    context.textBaseline = "middle";
    context.font = `${Math.min(13, w / 3)}px system-ui, sans-serif`;
    for (let patch = 0; patch < rows * columns; patch++) {
      const weight = map.at(this.query, before + patch), x = offset + patch % columns * w, y = Math.floor(patch / columns) * h;
      const shade = colour(weight / map.most);
      context.fillStyle = `rgb(${shade})`;
      context.fillRect(x, y, w, h);
      context.fillStyle = shade[0] * 0.3 + shade[1] * 0.59 + shade[2] * 0.11 > 130 ? "#000" : "#fff";
      if (w >= 28) context.fillText(number(weight), x + w / 2, y + h / 2);
    }
    for (const [place, start] of [[this.query, 0], [this.query, offset], [this.key, offset]]) {
      const patch = place - before;
      if (patch < 0) continue;
      const outline = (line, style) => {
        Object.assign(context, { lineWidth: line, strokeStyle: style });
        context.setLineDash(place === this.key && place !== this.query ? [5, 4] : []);
        context.strokeRect(start + patch % columns * w + 2, Math.floor(patch / columns) * h + 2, w - 4, h - 4);
      };
      outline(4, "#000");
      outline(2, "#ffd54a");
    }
    canvas.addEventListener("click", (event) => {
      const scale = canvas.width / canvas.clientWidth, x = event.offsetX * scale, y = Math.floor(event.offsetY * scale / h);
      const right = x >= offset, column = Math.floor((right ? x - offset : x) / w);
      if (column < 0 || column >= columns || y < 0 || y >= rows) return;
      this[right ? "key" : "query"] = before + y * columns + column;
      this.draw();
    });
    return [this.widget(canvas, `The image with its query patch, and the weights of ${this.site.name}, ${this.headName}, over the patches`)];
  }

  tables() {
    const { data } = this, made = [];
    if (data.sites.length) {
      const strongest = details("Strongest key of every query, as a table", () => { this.draw(); return element("p", {}, "…"); });
      this.fillStrongest = (map) => {
        if (!strongest.open) return;
        const { site } = this;
        const rows = site.queries.map((name, q) => {
          const row = [...map.values.subarray(q * map.K, (q + 1) * map.K)];
          const order = [...row.keys()].sort((one, other) => row[other] - row[one]).slice(0, 3);
          return [`${q + 1}. ${name}`, ...order.map((k) => `${site.keys[k]} ${number(row[k])}`)];
        });
        strongest.lastChild.replaceChildren(table(`${site.name}, ${this.headName}`, ["query", "strongest key", "second", "third"], rows));
      };
      made.push(strongest, details("Heads by layer: entropy, distance, share of the first token", () => this.statistics()));
    }
    if (data.classes.length) {
      made.push(details("Probabilities of the classes", () => table("Classes", ["class", "probability"], data.classes.map(([name, p]) => [name, number(p)])), true));
    }
    if (data.predictions.length) {
      const rows = data.predictions.map((each, at) => [`${at + 1}. ${each.token}`, number(each.p), each.other.map(([name, p]) => `${name} ${number(p)}`).join(", ")]);
      made.push(details("Probabilities of tokens, and alternatives", () => table("Tokens", ["token", "probability", "most probable"], rows), !data.sites.length));
    }
    if (data.ends.length) {
      const best = [1, 2].map((side) => Math.max(...data.ends.map((row) => row[side])));
      const cell = (p, side) => element("span", {}, element("span", { class: "bar", "aria-hidden": "true" },
        element("span", { style: `width:${100 * p / best[side]}%` })), p < 0.001 ? "<0.001" : number(p));
      const rows = data.ends.map(([token, ...ends], at) => [`${at + 1}. ${token}`, ...ends.map(cell)]);
      made.push(details("Where the answer starts and ends", () => table("Tokens", ["token", "start", "end"], rows), true));
    }
    if (data.beams.length) made.push(details("Hypotheses of the search, as a tree", () => this.tree(data.beams)));
    return made;
  }

  tree(beams) {
    return element("ul", { class: "tree" }, ...beams.map((beam) => element("li", beam.best ? { class: "best" } : {},
      element("p", { style: "margin:0" }, ...beam.tokens.map(([token, p]) => element("span", {}, element("bdi", {}, token), " ", element("small", {}, number(p)))),
        beam.score === null ? "" : `${beam.best && !beam.children.length ? "best, " : ""}score ${number(beam.score)}`),
      ...(beam.children.length ? [this.tree(beam.children)] : []))));
  }

  statistics() {
    const { sites } = this.data, images = sites.filter((site) => site.patches).length;
    const unit = images === sites.length ? "patches" : images ? "tokens or patches" : "tokens";
    const kinds = [["entropy", "entropy, nats"], ["distance", `mean distance, ${unit}`], ["first", "share of the first key"]];
    const rows = sites.flatMap((site) => site.statistics.map((each, head) => [`${site.name}, head ${head}`, ...kinds.map(([name]) => number(each[name]))]));
    const layered = sites.filter((site) => !site.name.endsWith(".rollout"));
    layered.sort((one, other) => kindOf(one).localeCompare(kindOf(other)));  // stable: layers stay in order
    return [...kinds.map(([name, label]) => this.chart(layered, name, label)), table("Heads", ["head", ...kinds.map(([, label]) => label)], rows)];
  }

  chart(sites, name, label) {
    const points = sites.flatMap((site, at) => site.statistics.map((each, head) => [at, head, each[name]])).filter((point) => point[2] !== null);
    if (!points.length) return "";
    const most = Math.max(...points.map((point) => point[2]), 1e-9), x = (at) => 50 + 300 * (at + 0.5) / sites.length, y = (value) => 110 - 90 * value / most;
    const svg = element("svg", { class: "chart", viewBox: "0 0 360 146", role: "img", "aria-label": `${label} of every head, by site; the table below has the numbers` },
      element("line", { x1: 50, x2: 350, y1: y(0), y2: y(0) }), element("text", { x: 44, y: y(most) + 4, "text-anchor": "end" }, number(most)),
      element("text", { x: 44, y: y(0) + 4, "text-anchor": "end" }, "0"));
    for (const [at, head, value] of points) {
      const count = sites[at].statistics.length, shift = (head - (count - 1) / 2) * Math.min(9, 280 / sites.length / count);
      svg.append(element("text", { x: x(at) + shift, y: y(value) + 4, "text-anchor": "middle" }, String(head)));
    }
    sites.forEach((site, at) => svg.append(element("text", { x: x(at), y: 126, "text-anchor": "middle" }, site.name.match(/[0-9]+/)?.[0] ?? site.name)));
    const kinds = sites.map(kindOf), spread = (kind) => 300 / sites.length * kinds.filter((each) => each === kind).length;
    for (const kind of new Set(kinds)) {
      const start = x(kinds.indexOf(kind) - 0.5);
      svg.append(element("line", { x1: start, x2: start, y1: 14, y2: 142 }), element("text", { x: start + spread(kind) / 2, y: 141, "text-anchor": "middle" }, kind));
    }
    return element("figure", {}, element("figcaption", {}, `${label}: each number is a head, above its layer`), svg);
  }
}

const { models, view: opened } = JSON.parse(document.getElementById("data").textContent);
const places = [...document.querySelectorAll(".runs")], together = models.length / places.length, made = new Map();
let shown = [];

function showText(number) {
  places.forEach((place, at) => { place.hidden = at !== number; });
  if (!made.has(number)) {
    made.set(number, [...places[number].querySelectorAll(".run")].map((place, at) =>
      new Run(models[number * together + at], place, number * together + at, opened)));
  }
  made.get(number).forEach((run, at) => shown[at] && run.follow(shown[at]));
  shown = made.get(number);
}

document.getElementById("text")?.addEventListener("change", (event) => showText(event.target.selectedIndex));
showText(0);
dark.addEventListener("change", () => shown.forEach((run) => run.data.sites.length && run.draw()));
