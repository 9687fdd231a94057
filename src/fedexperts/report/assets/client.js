// One client under all methods: its accuracy over the rounds, its data, its figures.
const picker = {  // in a live page it may come later
  get task() { return document.getElementById("pick-task"); },
  get client() { return document.getElementById("pick-client"); },
};

function options(select, names) {
  if (select.options.length === names.length && names.every((name, k) => select.options[k].text === name)) return;
  const chosen = select.selectedIndex;
  select.replaceChildren(...names.map((name, k) => new Option(name, String(k))));
  select.selectedIndex = Math.max(0, Math.min(chosen, names.length - 1));
}

function percent(tenThousandths) {
  return tenThousandths === null ? "–" : (tenThousandths / 100).toFixed(2);
}

function cell(row, tag, text) {
  const made = document.createElement(tag);
  made.textContent = text;
  row.append(made);
  return made;
}

function csvOf(header, rows) {
  const quoted = value => /[",\n]/.test(value) ? `"${String(value).replaceAll('"', '""')}"` : value;
  return [header, ...rows].map(row => row.map(quoted).join(",") + "\n").join("");
}

function plain(html) {
  return new DOMParser().parseFromString(html, "text/html").body.textContent;
}

function curves(task, k) {
  const found = page.figures["one-client-accuracy"];
  found.data = task.runs.map(run => ({
    type: "scatter", name: run.name, x: run.rounds, y: run.accuracy[k].map(one => one / 100),
    mode: "lines+markers", line: { color: run.colour, dash: run.dash, width: 2 },
    marker: {
      color: run.colour, symbol: run.symbol, size: run.rounds.map(one => one === run.selected_round ? 11 : 0), opacity: 1,
      line: { width: 0 },
    },
    hovertemplate: "%{y:.2f} %",
  }));
  const rows = task.runs.flatMap(run => run.rounds.map((r, i) => [plain(run.name), r, percent(run.accuracy[k][i])]));
  found.csv = csvOf(["run", "round", "test accuracy, %"], rows);
}

function labels(task, k) {
  const found = page.figures["one-client-data"];
  found.data = [{
    type: "bar", x: task.classes, y: task.counts[k], marker: { color: "#0072B2" },
    hovertemplate: "class %{x}: %{y} samples<extra></extra>",
  }];
  found.csv = csvOf(["class", "samples"], task.classes.map((name, c) => [plain(name), task.counts[k][c]]));
}

function table(task, k) {
  const body = document.querySelector("#client-figures tbody");
  body.replaceChildren(...task.runs.map(run => {
    const row = document.createElement("tr"), swatch = document.createElement("span");
    const name = cell(row, "td", plain(run.name));
    swatch.className = "swatch";
    swatch.style.borderTop = `3px ${{ solid: "solid", dot: "dotted" }[run.dash] || "dashed"} ${run.colour}`;
    name.prepend(swatch);
    for (const kind of ["last", "selected", "peak"]) cell(row, "td", percent(run[kind][k]));
    const gain = run.gains ? run.gains[k] : null;
    cell(row, "td", gain === null ? "–" : (gain > 0 ? "+" : "") + percent(gain));
    cell(row, "td", `${1 + run.selected.filter(other => other > run.selected[k]).length} of ${run.selected.length}`);
    return row;
  }));
  sortTable(document.getElementById("client-figures"));
}

function showClient() {
  if (!picker.client) return;
  options(picker.task, page.clients.map(task => task.name));
  picker.task.hidden = page.clients.length === 1;
  const task = page.clients[picker.task.selectedIndex];
  options(picker.client, task.clients);
  const k = picker.client.selectedIndex;
  curves(task, k);
  labels(task, k);
  table(task, k);
  const samples = task.counts[k].reduce((sum, one) => sum + one, 0);
  const classes = task.counts[k].filter(one => one > 0).length;
  document.getElementById("client-said").textContent =
    `${samples.toLocaleString("en")} samples of ${classes} class${classes === 1 ? "" : "es"}.`;
  for (const holder of document.querySelectorAll("#one-client .js-plotly-plot")) draw(holder);
}

function step(by) {
  const { selectedIndex, options: { length } } = picker.client;
  picker.client.selectedIndex = (selectedIndex + by + length) % length;
  showClient();
}

document.addEventListener("change", event => {
  if (event.target === picker.task || event.target === picker.client) showClient();
});
document.addEventListener("click", event => {
  if (event.target.id === "client-before") step(-1);
  if (event.target.id === "client-after") step(1);
});
