// Tables sort by any column: numbers from the largest on, names from the first on; the other way round if asked again.
function sortKey(cell) {
  const text = cell.textContent.trim();
  const number = Number(text.replace("−", "-").replace(/,/g, ""));
  return text === "–" || text === "" ? null : Number.isNaN(number) ? text : number;
}

function compare(one, other) {
  return typeof one === "number" && typeof other === "number" ? one - other
    : String(one).localeCompare(String(other), undefined, { numeric: true });
}

function sortTable(table) {
  const head = table.querySelector("th[aria-sort]");
  if (!head) return;
  const sign = head.getAttribute("aria-sort") === "ascending" ? 1 : -1;
  const rows = [...table.tBodies[0].rows].map(row => [sortKey(row.cells[head.cellIndex]), row]);
  rows.sort(([one], [other]) =>
    one === null || other === null ? (one === null) - (other === null) : sign * compare(one, other));
  table.tBodies[0].append(...rows.map(([, row]) => row));
}

document.addEventListener("click", event => {
  const head = event.target.closest("th");
  if (!head || !event.target.closest("button")) return;
  const table = head.closest("table"), before = head.getAttribute("aria-sort");
  const numbers = [...table.tBodies[0].rows].some(row => typeof sortKey(row.cells[head.cellIndex]) === "number");
  const first = numbers ? "descending" : "ascending", second = numbers ? "ascending" : "descending";
  table.querySelectorAll("th").forEach(other => other.removeAttribute("aria-sort"));
  head.setAttribute("aria-sort", before === first ? second : first);
  sortTable(table);
});
