// Figures: drawn when they come into sight, and saved for a paper.
"use strict";
const page = JSON.parse(document.getElementById("data").textContent);
const touched = matchMedia("(pointer: coarse)").matches;
const CONFIG = { responsive: true, displayModeBar: false };

function figureOf(holder) {
  return page.figures[holder.dataset.figure];
}

function onScreen(layout) {
  // A finger on a figure scrolls the page; what a reader has hidden or enlarged stays so when new rounds come.
  return { ...layout, dragmode: touched ? false : layout.dragmode, uirevision: "reader" };
}

function draw(holder) {
  const found = figureOf(holder);
  if (!found || !found.data) return Promise.resolve();
  return Plotly.react(holder, found.data, onScreen(found.layout), CONFIG);
}

const inSight = new IntersectionObserver(entries => {
  for (const { isIntersecting, target } of entries) {
    if (!isIntersecting) continue;
    inSight.unobserve(target);
    draw(target);
  }
}, { rootMargin: "800px" });

function drawAll(everything) {
  for (const holder of document.querySelectorAll(".drawing")) {
    if (everything || holder.classList.contains("js-plotly-plot")) draw(holder);
    else inSight.observe(holder);
  }
}

// --- saving

async function svgOf(name) {
  const { data, layout, paper } = page.figures[name];
  const { width, height } = paper;
  return Plotly.toImage({ data, layout: { ...layout, ...paper } }, { format: "svg", imageDataOnly: true, width, height });
}

function download(name, type, text) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

// The browser itself makes the PDF: a sheet of the figure's size with nothing else on it.
async function printOne(name) {
  const { width, height } = page.figures[name].paper;
  const sheet = document.createElement("div");
  sheet.className = "paper";
  sheet.innerHTML = `<style>@page { size: ${width}px ${height}px; margin: 0; }</style>${await svgOf(name)}`;
  document.querySelectorAll(".paper").forEach(old => old.remove());
  document.body.append(sheet);
  document.body.classList.add("one-figure");
  const title = document.title;
  document.title = name; // what the browser calls the file
  addEventListener("afterprint", () => {
    document.body.classList.remove("one-figure");
    document.title = title;
    sheet.remove();
  }, { once: true });
  print();
}

const SAVERS = {
  svg: async name => download(`${name}.svg`, "image/svg+xml", await svgOf(name)),
  pdf: printOne,
  csv: name => download(`${name}.csv`, "text/csv", page.figures[name].csv),
};

document.addEventListener("click", event => {
  const button = event.target.closest("button[data-save], button[data-file]");
  if (!button) return;
  if (button.dataset.file) download(button.dataset.file, "text/plain", page.files[button.dataset.file]);
  else SAVERS[button.dataset.save](button.dataset.of);
});
addEventListener("beforeprint", () => {
  if (!document.body.classList.contains("one-figure")) drawAll(true);
});
